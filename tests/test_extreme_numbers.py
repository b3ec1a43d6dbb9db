"""Numbers that a dtype cannot represent, and arguments of a wrong type, raise errors that say so."""

import functools

import pytest
import torch
from pyro.infer.autoguide import AutoNormal
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR

import pyro_bnn as pb
from pyro_bnn import data, scale_maps
from pyro_bnn.inference.guides import UniformInit
from pyro_bnn.inference.svi import NonFiniteError
from pyro_bnn.modelling.priors import PosteriorPrior

ADAM = functools.partial(torch.optim.Adam, lr=1e-2)


def posterior_prior(scale):
    shapes = {"net.weight": (1, 2), "net.bias": (1,)}
    locations = {name: torch.zeros(shape) for name, shape in shapes.items()}
    return PosteriorPrior(locations, {name: torch.full(shape, scale) for name, shape in shapes.items()})


PRIORS = {
    "normal": (pb.NormalPrior, "scale"),
    "network": (pb.NetworkNormalPrior, "scale"),
    "laplace": (pb.LaplacePrior, "scale"),
    "mixture-1": (lambda scale: pb.ScaleMixturePrior(0.5, scale, 0.1), "scale1"),
    "mixture-2": (lambda scale: pb.ScaleMixturePrior(0.5, 1.0, scale), "scale2"),
    "fan-in": (pb.FanInNormalPrior, "gain"),
    "learned": (pb.LearnedNormalPrior, "scale"),
    "horseshoe": (pb.HorseshoePrior, "global_scale"),
    "slab": (lambda scale: pb.HorseshoePrior(slab_scale=scale), "slab_scale"),
    "posterior": (posterior_prior, r"scales\['net.weight'\]"),
}


def make_model(prior=None, likelihood=None, dtype=torch.float32):
    torch.manual_seed(3)
    likelihood = likelihood or pb.GaussianLikelihood(0.5)
    return pb.BayesianModel(
        nn.Linear(2, 1, dtype=dtype), prior=prior or pb.NormalPrior(1.0), likelihood=likelihood, num_data=4
    )


def fit(model, guide=None, **options):
    x = torch.arange(8).reshape(4, 2).to(model.dtype) / 8
    guide = guide or pb.MeanFieldGuide(model)
    return pb.fit_svi(model, (x, x[:, :1]), guide, **{"optimizer": ADAM, "num_epochs": 2, "seed": 0, **options})


@pytest.mark.parametrize("scale", [1e50, 1e-50, 1e-30, 1e300])
@pytest.mark.parametrize("prior", PRIORS)
def test_a_prior_says_which_scales_its_dtype_can_hold(prior, scale):
    make, name = PRIORS[prior]
    with pytest.raises(ValueError, match=rf"`{name}` must lie between 5.4e-20 and 3.4e.38 in torch.float32, got"):
        make_model(make(scale))


@pytest.mark.parametrize("scale", [1e30, 1e-9])
@pytest.mark.parametrize("prior", PRIORS)
def test_wide_and_narrow_scales_that_fit_are_used(prior, scale):
    make, _ = PRIORS[prior]
    fit(make_model(make(scale)), kl_weight=1e-9)


@pytest.mark.parametrize("scale", [1e50, 1e-50])
@pytest.mark.parametrize("prior", PRIORS)
def test_double_precision_holds_more(prior, scale):
    make, _ = PRIORS[prior]
    make_model(make(scale), dtype=torch.float64)


@pytest.mark.parametrize("scale", [1e50, 1e-50])
@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("scale", lambda s: {"init": pb.NetworkInit(scale=s)}),
        ("scale` of `net.weight` by `prior_fraction", lambda s: {"init": pb.NetworkInit(prior_fraction=s)}),
        ("max_scale", lambda s: {"scale_map": scale_maps.Capped(s)}),
        ("smallest", lambda s: {"init": pb.NetworkInit(weight_fraction=0.1, smallest=s)}),
    ],
)
def test_the_first_scales_of_a_guide_fit_its_dtype(name, make, scale):
    with pytest.raises(ValueError, match=f"`{name}` must lie between"):
        pb.MeanFieldGuide(make_model(), **make(scale))


@pytest.mark.parametrize("scale", [1e50, 1e-50])
def test_a_noise_scale_that_the_dtype_cannot_hold_is_refused(scale):
    with pytest.raises(ValueError, match=r"`fixed_scale` .* is out of range in torch.float32; use a model in float64"):
        make_model(likelihood=pb.GaussianLikelihood(scale))


@pytest.mark.parametrize("mixing", [1e-50, 1e-9, 1 - 1e-12])
def test_a_mixture_of_one_component_is_refused(mixing):
    with pytest.raises(ValueError, match=r"`mixing` must lie between 1.2e-07 and 1 - 1.2e-07 in torch.float32"):
        make_model(pb.ScaleMixturePrior(mixing, 1.0, 0.1))


@pytest.mark.parametrize("weight", [1e50, 2**1030, pytest.param(10**5000, id="huge")])
@pytest.mark.parametrize("is_function", [False, True])
def test_kl_weights_have_a_range(weight, is_function):
    with pytest.raises(ValueError, match=r"a KL weight must be at most 1e\+30"):
        fit(make_model(), kl_weight=(lambda *_: weight) if is_function else weight)


def test_a_kl_weight_may_be_a_large_whole_number():
    fit(make_model(dtype=torch.float64), kl_weight=2**70)
    with pytest.raises(
        ValueError, match=r"`kl_weight` 1.* times the prior's precision 1e.2. is too large for torch.float32"
    ):
        fit(make_model(pb.NormalPrior(1e-10)), kl_weight=1e25)


@pytest.mark.parametrize(
    "guide",
    [pb.MeanFieldGuide, lambda model: pb.LowRankGuide(model, rank=1), functools.partial(pb.auto_guide, AutoNormal)],
)
def test_a_kl_weight_that_makes_the_gradient_overflow_is_named_in_the_remedy(guide):
    model = make_model()
    with pytest.raises(NonFiniteError, match=r"The KL weight is 1.18059e\+21: lower it") as caught:
        fit(model, guide(model), kl_weight=2**70)
    assert "at epoch 0, batch 0" in str(caught.value)
    with pytest.raises(NonFiniteError) as caught:
        fit(model, guide(model), optimizer=functools.partial(torch.optim.SGD, lr=1e30))
    assert "KL weight" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lr": 1e50}, "`lr` is a fraction of a Newton step"),
        ({"initial_hessian": 1e50}, "`initial_hessian` 1e.50 gives"),
    ],
)
def test_natural_gradients_have_a_range(options, message):
    model = make_model()
    guide = pb.MeanFieldGuide(model, scale_map=scale_maps.Precision())
    with pytest.raises(ValueError, match=message):
        fit(model, guide, optimizer=pb.optim.natural_gradient(**options))


@pytest.mark.parametrize("result", [0, None, "x", CosineAnnealingLR])
@pytest.mark.parametrize("make", [lambda r: pb.optim.scheduled(ADAM, lambda _: r), lambda r: lambda p: (ADAM(p), r)])
def test_a_schedule_that_is_none_is_refused(make, result):
    with pytest.raises(
        ValueError, match="`schedule` must be a function from an optimizer to one of torch's schedulers"
    ):
        fit(make_model(), optimizer=make(result))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        *(
            (functools.partial(data.regression_problem, n), "`num_data` must be a whole number")
            for n in ("x", -1, 0, None)
        ),
        (lambda: data.regression_problem(5, noise=-1.0), "`noise` must be a finite number of at least 0"),
        (lambda: data.regression_problem(5, gap="x"), r"`gap` must lie in \[0, 1\)"),
        (lambda: data.regression_problem(5, seed="x"), "`seed` must be a whole number"),
        *((functools.partial(data.load_images, name), "unknown data set") for name in ([], {}, 3, None)),
        *((functools.partial(data.load_uci, name, 0), "unknown data set") for name in ([], {}, 3, None)),
        *((functools.partial(data.load_images, "mnist", root=r), "`root` must be the path") for r in (3, [], "")),
        *((functools.partial(data.load_uci, "yacht", 0, root=r), "`root` must be the path") for r in (3, [], "")),
    ],
)
def test_data_sets_say_what_they_take(call, message):
    with pytest.raises(ValueError, match=message):
        call()


HUGE = [pytest.param(n, id=i) for i, n in (("above", 10**400), ("below", -(10**400)), ("long", 10**5000))]


@pytest.mark.parametrize("value", HUGE)
@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("scale", pb.NormalPrior),
        ("scale", pb.GaussianLikelihood),
        ("num_data", data.regression_problem),
        ("noise", lambda value: data.regression_problem(5, noise=value)),
        ("gap", lambda value: data.regression_problem(5, gap=value)),
        ("seed", lambda value: data.regression_problem(5, seed=value)),
        ("lr", pb.SGLD),
        ("momentum", lambda value: pb.SGHMC(lr=1e-4, momentum=value)),
        ("momentum", lambda value: pb.optim.natural_gradient(0.1, momentum=value)),
        ("temperature", lambda value: pb.SGLD(1e-4, temperature=value)),
        ("max_norm", lambda value: pb.optim.clipped(ADAM, value)),
        ("num_epochs", lambda value: fit(make_model(), num_epochs=value)),
        ("batch_size", lambda value: fit(make_model(), batch_size=value)),
        ("loc", lambda value: pb.distributions.NormalMixture(torch.zeros(2), value, 1.0)),
        ("fraction", lambda value: pb.pruning.prune(pb.MeanFieldGuide(make_model()), fraction=value)),
    ],
)
def test_numbers_beyond_floating_point_are_refused_by_name(name, call, value):
    with pytest.raises(ValueError, match=rf"`{name}` must .*, got a number (above |below -)1.8e\+308") as caught:
        call(value)
    assert len(str(caught.value)) < 200


def test_weights_of_classes_beyond_floating_point_are_refused():
    with pytest.raises(ValueError, match="`class_weights` must be one number per class"):
        pb.CategoricalLikelihood(class_weights=[1.0, 10**400])


@pytest.mark.parametrize(
    "options",
    [
        lambda n: {"prior": pb.NormalPrior(n)},
        lambda n: {"prior": pb.ScaleMixturePrior(0.5, n, 1)},
        lambda n: {"prior": pb.HorseshoePrior(slab_scale=n)},
        lambda n: {"prior": pb.LearnedNormalPrior(n)},
        lambda n: {"likelihood": pb.GaussianLikelihood(n)},
        lambda n: {"init": pb.NetworkInit(scale=n)},
        lambda n: {"init": pb.NetworkInit(weight_fraction=n)},
        lambda n: {"init": pb.NormalInit(loc_scale=n)},
        lambda n: {"init": UniformInit((0, n))},
        lambda n: {"scale_map": scale_maps.Capped(n)},
    ],
)
def test_whole_numbers_are_taken_like_fractions(options):
    """Also whole numbers above 2**63, which torch does not accept as numbers."""

    def start(number):
        given = options(number)
        model = make_model(given.pop("prior", None), given.pop("likelihood", None))
        torch.manual_seed(0)
        return pb.MeanFieldGuide(model, **given).state_dict()

    for name, value in start(2**70).items():
        assert torch.equal(value, start(2.0**70)[name])


@pytest.mark.parametrize(
    "call",
    [
        lambda n: pb.nets.mlp([n, n]).state_dict()["0.weight"],
        lambda n: pb.nets.lenet5(num_classes=n).state_dict()["linear3.weight"],
        lambda n: data.regression_problem(n)[0],
        lambda n: data.blur(torch.linspace(0, 1, 64).reshape(8, 8), n),
        lambda n: pb.metrics.calibration_bins([[0.9, 0.1], [0.4, 0.6]], [0, 0], num_bins=n).edges,
        lambda n: pb.metrics.calibration_error_by_chance([[0.9, 0.1]], num_bins=n, num_samples=n),
        lambda n: pb.predict(m := make_model(), pb.MeanFieldGuide(m), torch.zeros(4, 2).float(), batch_size=n).mean,
        lambda n: fit(make_model(), execution=pb.Execution(num_parts=n)).median()["net.weight"],
        lambda n: torch.tensor(pb.CyclicalSteps(num_cycles=n).stage(25, 100).factor),
    ],
)
def test_a_count_may_be_a_float_that_is_whole(call):
    assert call(3).shape == call(3.0).shape


@pytest.mark.parametrize("count", [2**62, 2**45])
@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("num_samples", lambda n: predicted(num_samples=n)),
        ("num_samples", lambda n: fit(make_model()).sample(n)),
        ("num_samples", lambda n: pb.fit_gauss_newton(make_model(), DATA).sample(n)),
        ("num_samples", lambda n: predicted(num_samples=2, keep_draws=True).sample(n)),
        (
            "num_chains",
            lambda n: pb.fit_sgmcmc(
                make_model(), DATA, sampler=pb.SGLD(1e-4), num_epochs=9, num_samples=2, num_chains=n
            ),
        ),
        ("num_bins", lambda n: pb.metrics.calibration_bins([[0.9, 0.1]], [0], num_bins=n)),
        ("num_bins", lambda n: pb.metrics.adaptive_calibration_error([[0.9, 0.1]], [0], num_bins=n)),
        ("num_data", data.regression_problem),
        ("sizes", lambda n: pb.nets.mlp([2, n, 1])),
    ],
)
def test_what_needs_more_memory_than_there_is_is_refused_at_once(name, call, count):
    message = rf"`{name}` of {count} needs [\d.e+]+ GB, and this machine has [\d.e+]+ GB of memory; (ask|choose)"
    with pytest.raises(ValueError, match=message):
        call(count)


@pytest.mark.parametrize("sampler", [pb.NUTS(3.0), pb.HMC(max_steps=3.0), pb.MCLMC(steps_per_draw=3.0)])
@pytest.mark.filterwarnings("ignore::pyro_bnn.ConvergenceWarning")
def test_counts_of_samplers_may_be_whole_floats_and_draws_beyond_memory_are_refused(sampler):
    model, options = make_model(), {"sampler": sampler, "num_warmup": 2, "num_chains": 1, "seed": 0}
    assert pb.fit_mcmc(model, DATA, num_samples=4, **options).num_stored == 4
    with pytest.raises(ValueError, match=rf"`num_samples` of {2**62} needs [\d.e+]+ GB"):
        pb.fit_mcmc(model, DATA, num_samples=2**62, **options)


def test_kept_draws_that_need_more_memory_than_there_is_are_refused(monkeypatch):
    monkeypatch.setattr("os.sysconf", {"SC_PAGE_SIZE": 1, "SC_PHYS_PAGES": 10_000}.get)
    assert predicted(num_samples=150).num_samples == 150
    with pytest.raises(ValueError, match=r"`num_samples` of 150 needs .*; ask for fewer, or leave `keep_draws` out"):
        predicted(num_samples=150, rows=20, keep_draws=True)


DATA = torch.zeros(4, 2).float(), torch.zeros(4, 1).float()


def predicted(rows=4, **options):
    model = make_model()
    return pb.predict(model, pb.MeanFieldGuide(model), torch.zeros(rows, 2).float(), **options)
