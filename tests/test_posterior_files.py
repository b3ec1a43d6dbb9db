"""Every posterior goes into one file and comes back bit for bit; a file that does not fit changes nothing."""

import copy

import pyro.distributions as dist
import pytest
import torch
from pyro.infer.autoguide import AutoNormal
from torch import nn

import pyro_bnn as pb
from pyro_bnn import pruning
from pyro_bnn.inference.batch_norm import PinnedPosterior
from pyro_bnn.inference.mcmc import Modes

from .cases import GUIDES, LIKELIHOODS, PRIORS, small_model
from .chains import hierarchy, quietly
from .fits import MORE_PRIORS
from .posteriors import POSTERIORS, batch_norm, chains, make, make_model, points, same, whole
from .pruned import scattered

MORE = {**PRIORS, **MORE_PRIORS}


def states(*modules):
    return [copy.deepcopy(module.state_dict()) for module in modules]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
@pytest.mark.parametrize("name", POSTERIORS)
def test_a_posterior_comes_back_to_the_bit(tmp_path, name, dtype):
    model, x, posterior = make(name, dtype)
    pb.save_posterior(posterior, tmp_path / "file", model)
    fresh, *_ = make_model(name, dtype, seed=1)
    generator = torch.get_rng_state()
    loaded = pb.load_posterior(tmp_path / "file", fresh)
    assert torch.equal(torch.get_rng_state(), generator)
    assert type(loaded) is type(posterior)
    assert same(model.state_dict(), fresh.state_dict()) or "pruned" in name
    assert same(posterior.sample(8, seed=3), loaded.sample(8, seed=3))
    first, second = (pb.predict(m, p, x, num_samples=8, seed=1) for m, p in ((model, posterior), (fresh, loaded)))
    assert torch.equal(first.mean, second.mean)
    assert torch.equal(first.total, second.total)
    assert (loaded.status, loaded.seconds) == (posterior.status, posterior.seconds)


@pytest.mark.parametrize("name", GUIDES)
def test_every_guide_is_loaded_into_one_that_was_built_like_it(tmp_path, name):
    guides = []
    for seed in range(2):
        model, *_ = whole(seed=seed)
        guides.append(GUIDES[name](model))
    pb.save_posterior(guides[0], tmp_path / "file", whole()[0])
    loaded = pb.load_posterior(tmp_path / "file", model, guide=guides[1])
    assert same(pb.GuidePosterior(guides[0]).sample(3, seed=0), loaded.sample(3, seed=0))


@pytest.mark.parametrize(
    "kwargs",
    [*({"prior": prior} for prior in MORE.values()), *({"likelihood": name} for name in LIKELIHOODS)],
    ids=[*MORE, *LIKELIHOODS],
)
def test_a_model_built_again_fits_its_file(tmp_path, kwargs):
    first, second = (small_model(**kwargs)[0] for _ in range(2))
    pb.save_posterior(pb.MeanFieldGuide(first, init=pb.NormalInit()), tmp_path / "file", first)
    pb.load_posterior(tmp_path / "file", second)
    assert same(first.state_dict(), second.state_dict())


def test_what_is_known_of_the_inference_comes_back(tmp_path):
    model, _, posterior = make("mean-field")
    pb.save_posterior(posterior, tmp_path / "file", model)
    assert pb.load_posterior(tmp_path / "file", model).history == posterior.history
    model, _, posterior = make("laplace")
    pb.save_posterior(posterior, tmp_path / "file", model)
    assert pb.load_posterior(tmp_path / "file", model).log_evidence == posterior.log_evidence
    model, _, posterior = make("nuts")
    pb.save_posterior(posterior, tmp_path / "file", model)
    loaded = pb.load_posterior(tmp_path / "file", model)
    assert loaded.sampler == posterior.sampler
    assert all(torch.equal(a, b) for a, b in zip(*map(tensors, (loaded, posterior)), strict=True))


@pytest.mark.parametrize("r_hat", [1.5, torch.inf])
def test_the_modes_of_chains_come_back(tmp_path, r_hat):
    drawn = chains({"weight": torch.randn(2, 9, 3)})
    drawn.modes = Modes(torch.tensor([1.0, r_hat]), r_hat, 0.25)
    pb.save_posterior(drawn, tmp_path / "file", None)
    loaded = pb.load_posterior(tmp_path / "file", None)
    assert (loaded.modes.num_unexplored, str(loaded.modes)) == (1, str(drawn.modes))


def tensors(posterior):
    return [value for value in vars(posterior.statistics).values() if isinstance(value, torch.Tensor)]


def test_the_file_holds_no_training_data(tmp_path):
    """Laplace's posterior of a thousand rows and of ten: the files have the same size, up to digits of numbers."""
    sizes = []
    for num_data in (10, 1000):
        torch.manual_seed(0)
        model, *_ = small_model(likelihood="gaussian-fixed", num_data=num_data)
        data = torch.randn(num_data, 4), torch.randn(num_data, 2)
        posterior = quietly(pb.fit_laplace, model, data, max_iter=3)
        pb.save_posterior(posterior, tmp_path / "file", model)
        sizes.append((tmp_path / "file").stat().st_size)
    assert abs(sizes[0] - sizes[1]) < 800


# --- guides that the caller builds ------------------------------------------------------------------------------------


class OwnGuide(pb.MeanFieldGuide):
    """A guide that only the caller can make."""

    def __init__(self, model, extra):
        super().__init__(model)
        self.register_buffer("extra", torch.as_tensor(extra))


def test_a_guide_of_ones_own_is_loaded_into(tmp_path):
    model, *_ = whole()
    guide, fresh = OwnGuide(model, 1.0), OwnGuide(model, 2.0)
    pb.save_posterior(guide, tmp_path / "file", model)
    with pytest.raises(ValueError, match="OwnGuide cannot be made from the file alone; build one like the saved guide"):
        pb.load_posterior(tmp_path / "file", model)
    assert pb.load_posterior(tmp_path / "file", model, guide=fresh).guide is fresh
    assert same(guide.state_dict(), fresh.state_dict())
    with pytest.raises(ValueError, match="is a OwnGuide, but `guide` is a MeanFieldGuide"):
        pb.load_posterior(tmp_path / "file", model, guide=pb.MeanFieldGuide(model))
    with pytest.raises(ValueError, match=r"holds 1 guide but `guide` has 2"):
        pb.load_posterior(tmp_path / "file", model, guide=[fresh, fresh])
    with pytest.raises(ValueError, match="`guide` must be a guide that is a module"):
        pb.load_posterior(tmp_path / "file", model, guide=[5])


def test_an_ensemble_takes_a_guide_for_each_member(tmp_path):
    model, *_ = whole()
    members = [pb.GuidePosterior(OwnGuide(model, float(index))) for index in range(2)]
    pb.save_posterior(pb.EnsemblePosterior(members), tmp_path / "file", model)
    fresh = [OwnGuide(model, 9.0) for _ in range(2)]
    loaded = pb.load_posterior(tmp_path / "file", model, guide=fresh)
    assert [float(member.guide.extra) for member in loaded.members] == [0.0, 1.0]
    with pytest.raises(ValueError, match="holds more guides than `guide`, which has 1"):
        pb.load_posterior(tmp_path / "file", model, guide=fresh[0])


def test_a_stock_guide_without_parameters_is_told(tmp_path):
    model, _, posterior = make("stock")
    pb.save_posterior(posterior, tmp_path / "file", model)
    with pytest.raises(ValueError, match="has no parameters yet; call it once with the model's arguments"):
        pb.load_posterior(tmp_path / "file", model, guide=AutoNormal(model))


def test_a_pruned_file_replaces_the_masks_of_a_guide(tmp_path):
    model, *_ = whole()
    guides = [pruning.prune(scattered(model), fraction=fraction).guide for fraction in (0.7, 0.2)]
    pb.save_posterior(guides[0], tmp_path / "file", model)
    pb.load_posterior(tmp_path / "file", model, guide=guides[1])
    assert same(guides[0].state_dict(), guides[1].state_dict())


def test_posteriors_of_other_pyro_models(tmp_path):
    x, y = torch.randn(8, 3), torch.randn(8)
    drawn = chains({"spread": torch.rand(2, 5), "weight": torch.randn(2, 5, 3), "noise": torch.rand(2, 5)})
    pb.save_posterior(drawn, tmp_path / "chains", None)
    assert same(pb.load_posterior(tmp_path / "chains", None).chains, drawn.chains)
    guide, fresh = (pb.MeanFieldGuide(hierarchy, x, y, init=pb.NormalInit()) for _ in range(2))
    pb.save_posterior(guide, tmp_path / "guide", None)
    with pytest.raises(ValueError, match="cannot be made from the file alone; build one like the saved guide"):
        pb.load_posterior(tmp_path / "guide", None)
    assert same(pb.load_posterior(tmp_path / "guide", None, guide=fresh).sample(2, seed=0), sampled(guide))
    model, *_ = whole()
    with pytest.raises(ValueError, match="saved without a model; pass None"):
        pb.load_posterior(tmp_path / "chains", model)
    pb.save_posterior(pb.DeltaGuide(model), tmp_path / "file", model)
    with pytest.raises(ValueError, match="saved with a BayesianModel; pass a `model` built like"):
        pb.load_posterior(tmp_path / "file", None)


def sampled(guide):
    return pb.GuidePosterior(guide).sample(2, seed=0)


# --- what cannot be saved ---------------------------------------------------------------------------------------------


class Origin(pb.Posterior):
    status = pb.Status(True, "zero")

    def draws(self, num_samples, *args):
        yield {}


def with_nan(model):
    guide = pb.MeanFieldGuide(model)
    with torch.no_grad():
        guide.loc.get_parameter("net.0.weight")[0, 0] = torch.nan
    return guide


@pytest.mark.parametrize(
    ("make_posterior", "message"),
    [
        (lambda m: Origin(), "a posterior of type Origin cannot be saved"),
        (lambda m: lambda x: None, "the guide must be a module to be saved, got function"),
        (with_nan, r"`loc\.net\.0\.weight` of the guide must be finite, got 1 NaN or infinite number of 20"),
        (lambda m: pb.MeanFieldGuide(small_model()[0]), "but the model has others; pass the guide.s own model"),
        (lambda m: chains({}), "`chains` must hold at least one site, got none"),
        (lambda m: 5, "`posterior` must be a posterior or a guide, as in .*, got int"),
    ],
)
def test_what_cannot_be_saved_is_told_and_leaves_the_old_file(tmp_path, make_posterior, message):
    (tmp_path / "file").write_bytes(b"precious")
    model, *_ = whole()
    with pytest.raises(ValueError, match=message):
        pb.save_posterior(make_posterior(model), tmp_path / "file", model)
    assert (tmp_path / "file").read_bytes() == b"precious"


@pytest.mark.parametrize(
    ("name", "number", "message"),
    [
        ("net.0.bias", torch.nan, "must be finite, got 1 NaN"),
        ("net.1.running_mean", torch.inf, "must be finite, got 1 NaN or infinite"),
        ("net.1.running_var", -1.0, "must not be negative, got -1"),
    ],
)
def test_a_pinned_network_with_an_impossible_number_is_not_saved(tmp_path, name, number, message):
    model, _, ensemble = make("pinned")
    ensemble.members[1].values[name][0] = number
    with pytest.raises(ValueError, match=f"`{name}` of the pinned network {message}"):
        pb.save_posterior(ensemble, tmp_path / "file", model)


def test_pinned_values_must_be_those_of_the_network():
    model, _, ensemble = make("pinned")
    values = dict(ensemble.members[0].values)
    del values["net.0.bias"]
    with pytest.raises(ValueError, match=r"`values` must have the names net\.0\.bias, .*, got net\.1\.bias"):
        PinnedPosterior(model, ensemble.members[0].inner, values=values)


def test_infinities_that_the_model_has_too_are_allowed(tmp_path):
    class Masked(nn.Linear):
        def __init__(self):
            super().__init__(4, 2)
            self.register_buffer("mask", torch.tensor([0.0, -torch.inf]))

    model, *_ = whole(net=Masked())
    pb.save_posterior(pb.DeltaGuide(model), tmp_path / "file", model)
    assert pb.load_posterior(tmp_path / "file", model).method == "DeltaGuide"
    model.network.mask.zero_()
    with pytest.raises(ValueError, match=r"`net\.mask` of the model must be finite"):
        pb.load_posterior(tmp_path / "file", model)


# --- models that do not fit -------------------------------------------------------------------------------------------


def net(hidden=5, activation=nn.Tanh, num_layers=1):
    layers = [layer for _ in range(num_layers) for layer in (nn.Linear(hidden, hidden), activation())][2:]
    return nn.Sequential(nn.Linear(4, hidden), activation(), *layers, nn.Linear(hidden, 2))


OTHERS = {
    "width": (
        {"net": lambda: net(6)},
        r"shape of `net\.0\.weight` is \(5, 4\) in the file and \(6, 4\) in the model",
    ),
    "depth": (
        {"net": lambda: net(num_layers=2)},
        r"the shape of `net\.2\.weight` is \(2, 5\) in the file and \(5, 5\)",
    ),
    "activation": ({"net": lambda: net(activation=nn.ReLU)}, "the layer `1` is Tanh in the file and ReLU in the model"),
    "more-layers": ({"net": lambda: net().append(nn.ReLU())}, "the layer `3` is none in the file and ReLU in the"),
    "fewer-layers": ({"net": lambda: nn.Sequential(*net()[:1], nn.Identity(), net()[2])}, "`1` is Tanh in the file"),
    "prior": (
        {"prior": pb.NormalPrior(0.8)},
        r"prior of `net\.0\.weight` is Normal\(loc=0, scale=0\.7\) in the file and Normal\(loc=0, scale=0\.8\)",
    ),
    "prior-kind": ({"prior": pb.LaplacePrior(0.7)}, r"prior of `net\.0\.weight` is Normal\(.*and Laplace\("),
    "noise-prior": ({"likelihood": pb.GaussianLikelihood(dist.LogNormal(0.0, 2.0))}, r"prior of `likelihood\.scale`"),
    "likelihood": ({"likelihood": pb.GaussianLikelihood(0.5)}, "has `likelihood.scale`, which the model lacks"),
    "likelihood-class": ({"likelihood": pb.PoissonLikelihood()}, "`likelihood.scale`"),
    "num_data": ({"num_data": 7}, "the `num_data` is 6 in the file and 7 in the model"),
    "where": ({"where": "**.weight"}, r"has `net\.0\.bias`, which the model lacks"),
    "dtype": (
        {"net": lambda: net().float()},
        r"its model has the dtype torch\.float64 but this model has torch\.float32",
    ),
}


def other_model(net=net, prior=None, likelihood=None, num_data=6, where="**"):
    torch.manual_seed(2)
    return pb.BayesianModel(
        net(),
        prior=prior or pb.NormalPrior(0.7),
        likelihood=likelihood or pb.GaussianLikelihood(dist.LogNormal(0.0, 1.0)),
        num_data=num_data,
        where=where,
    )


def unlike():
    """Pairs of likelihoods that differ only in settings that are no tensors."""
    of = pb.likelihoods
    return {
        "family": (of.Survival("weibull"), of.Survival("lognormal"), "family='weibull'.*and .*family='lognormal'"),
        "limit": (of.Censored(low=0.0), of.Censored(low=-1.0), r"low=0\.0.*low=-1\.0"),
        "side": (of.Censored(low=0.0), of.Censored(high=0.0), r"high=inf, low=0\.0.*high=0\.0, low=-inf"),
        "min_scale": (
            pb.MixtureDensityLikelihood(2),
            pb.MixtureDensityLikelihood(2, min_scale=0.1),
            r"min_scale=1e-06.*min_scale=0\.1",
        ),
    }


@pytest.mark.parametrize("name", ["family", "limit", "side", "min_scale"])
def test_settings_of_a_likelihood_that_are_no_tensors_must_be_those_of_the_file(tmp_path, name):
    saved, other, message = unlike()[name]
    model = other_model(likelihood=saved)
    pb.save_posterior(scattered(model), tmp_path / "file", model)
    with pytest.raises(ValueError, match=f"the likelihood is .*{message}.* in the model; build"):
        pb.load_posterior(tmp_path / "file", other_model(likelihood=other))
    assert pb.load_posterior(tmp_path / "file", other_model(likelihood=unlike()[name][0]))
    if name != "min_scale":
        assert pb.load_posterior(tmp_path / "file", other_model(likelihood=unlike()[name][0].with_row_weights()))


@pytest.mark.parametrize("name", OTHERS)
def test_a_model_that_does_not_fit_is_told_what_differs_and_stays(tmp_path, name):
    kwargs, message = OTHERS[name]
    model = other_model()
    pb.save_posterior(scattered(model), tmp_path / "file", model)
    other = other_model(**kwargs)
    guide = pb.MeanFieldGuide(other)
    before = states(other, guide)
    with pytest.raises(ValueError, match=message):
        pb.load_posterior(tmp_path / "file", other, guide=guide)
    assert all(map(same, before, states(other, guide)))
    assert pb.load_posterior(tmp_path / "file", other_model())


def test_an_error_after_the_checks_leaves_everything_as_it_was(tmp_path):
    """The model refuses its state at the very end: the guides that were already loaded are restored."""
    model, *_ = whole(net=batch_norm(), where="**.weight")
    guide = scattered(model)
    pb.save_posterior(pb.EnsemblePosterior([pb.GuidePosterior(guide), *points(model)]), tmp_path / "file", model)
    fresh, *_ = whole(net=batch_norm(), where="**.weight", seed=1)
    guides = [pb.MeanFieldGuide(fresh), *(point.guide for point in points(fresh))]
    before = states(fresh, *guides)
    calls = []

    def refuse(*args):
        calls.append(args)
        if len(calls) == 1:
            raise RuntimeError("no")

    fresh.network.register_load_state_dict_pre_hook(refuse)
    with pytest.raises(RuntimeError, match="no"):
        pb.load_posterior(tmp_path / "file", fresh, guide=guides)
    assert all(map(same, before, states(fresh, *guides)))


def test_a_pruned_embedding_keeps_its_padding_row(tmp_path):
    def model():
        layer = nn.Embedding(5, 3, padding_idx=0)
        nn.init.normal_(layer.weight)
        network = nn.Sequential(layer, nn.Flatten(), nn.Linear(6, 2))
        return pb.BayesianModel(network, prior=pb.NormalPrior(), likelihood=pb.GaussianLikelihood(0.5), num_data=6)

    first, second, x = model(), model(), torch.tensor([[0, 1], [2, 0]])
    pruned = pruning.prune(scattered(first), fraction=0.5)
    pb.save_posterior(pruned, tmp_path / "file", first)
    loaded = pb.load_posterior(tmp_path / "file", second)
    a, b = (pb.predict(m, p, x, num_samples=3, seed=0).mean for m, p in ((first, pruned), (second, loaded)))
    assert torch.equal(a, b)


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["mean-field", "pruned", "laplace", "nuts"])
def test_a_file_goes_to_another_device(tmp_path, name):
    model, _, posterior = make(name)
    pb.save_posterior(posterior, tmp_path / "cpu", model)
    there = make_model(name, seed=1)[0].cuda()
    loaded = pb.load_posterior(tmp_path / "cpu", there)
    assert all(value.is_cuda for value in loaded.sample(2, seed=0).values())
    pb.save_posterior(loaded, tmp_path / "gpu", there)
    again = pb.load_posterior(tmp_path / "gpu", make_model(name, seed=2)[0])
    assert same(again.sample(2, seed=0), posterior.sample(2, seed=0))
