"""The direct path of `fit_svi` is Pyro's own, without its machinery: same draws, same ELBO, same gradients."""

import dataclasses
import functools
import math
import warnings

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import RenyiELBO, Trace_ELBO, TraceMeanField_ELBO
from pyro.nn import PyroSample
from pyro_bnn.svi._flat import softplus_
from pyro_bnn.svi._steps import Step
from torch import nn

import pyro_bnn as pb
from pyro_bnn.joint import density_of, find_sites
from pyro_bnn.svi import _direct, _fit, _graph

from .cases import FIXED_PRIORS, LIKELIHOODS, small_model
from .tolerances import assert_identical

ELBOS = [Trace_ELBO, TraceMeanField_ELBO]
FUSED = functools.partial(torch.optim.Adam, lr=0.05, fused=True)
ESTIMATORS = {"plain": None, "lrt": pb.LocalReparameterization(), "flipout": pb.Flipout()}


class PerWeightPrior(pb.Prior):
    """A Gaussian with a mean and a scale for each weight."""

    def elementwise(self, name, parameter, module):
        ramp = torch.arange(parameter.numel()).view(parameter.shape).to(parameter)
        return dist.Normal(ramp / 10, 0.5 + ramp / 20)


class JointPrior(pb.Prior):
    """Weights that depend on each other."""

    def elementwise(self, name, parameter, module):
        raise NotImplementedError

    def __call__(self, name, parameter, module):
        size = parameter.numel()
        covariance = torch.eye(size).to(parameter) + 0.3
        gaussian = dist.MultivariateNormal(parameter.new_zeros(size), covariance)
        return dist.TransformedDistribution(
            gaussian, [dist.transforms.ReshapeTransform((size,), tuple(parameter.shape))]
        )


class WidePrior(pb.Prior):
    """A Gaussian away from zero."""

    def elementwise(self, name, parameter, module):
        return dist.Normal(parameter.new_tensor(0.3), parameter.new_tensor(2.0))


class PositivePrior(pb.Prior):
    """Some weights are positive."""

    def elementwise(self, name, parameter, module):
        one = parameter.new_ones(())
        return dist.LogNormal(0 * one, one) if name.endswith("2.weight") else dist.Normal(0 * one, one)


MORE_PRIORS = {
    **FIXED_PRIORS,
    "mixture-swapped": pb.ScaleMixturePrior(0.25, 0.1, 0.75),
    "per-weight": PerWeightPrior(),
    "joint": JointPrior(),
    "wide": WidePrior(),
    "positive": PositivePrior(),
}


def fit_both(monkeypatch, make, **options):
    """Histories and parameters of the same fit by either path."""
    found = []
    for path in ("direct", "pyro"):
        torch.manual_seed(3)
        model, guide, data = make()
        options = {"optimizer": functools.partial(torch.optim.Adam, lr=0.02), "num_epochs": 4, "seed": 1, **options}
        with monkeypatch.context() as patch:
            if path == "pyro":
                patch.setattr(_fit, "obstacle", lambda *_: "forbidden by the test")
            history = pb.fit_svi(model, guide, data, **options).history
        assert history.path == {"direct": "direct", "pyro": "pyro: forbidden by the test"}[path]
        found.append((history, {**dict(guide.named_parameters()), **dict(model.named_parameters())}))
    return found


def assert_same(found):
    (first, first_parameters), (second, second_parameters) = found
    assert_identical(first.expected_log_likelihood, second.expected_log_likelihood)
    torch.testing.assert_close(torch.tensor(first.kl), torch.tensor(second.kl), rtol=1e-9, atol=1e-9)
    assert list(first_parameters) == list(second_parameters)
    for name, parameter in first_parameters.items():
        torch.testing.assert_close(parameter, second_parameters[name], rtol=1e-9, atol=1e-11)
        if parameter.requires_grad:
            torch.testing.assert_close(parameter.grad, second_parameters[name].grad, rtol=1e-8, atol=1e-9)


def problem(prior="normal", likelihood="gaussian-fixed", **kwargs):
    def make():
        model, x, y = small_model(prior=MORE_PRIORS[prior], likelihood=likelihood, num_data=6, **kwargs)
        return model, pb.MeanFieldGuide(model, init=pb.NormalInit(rho=-1.0, rho_scale=0.5)), (x, y)

    return make


# --- the same numbers -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("elbo", ELBOS)
@pytest.mark.parametrize("prior", MORE_PRIORS)
def test_every_prior_gives_the_same_fit(monkeypatch, prior, elbo):
    assert_same(fit_both(monkeypatch, problem(prior), elbo=elbo, batch_size=4))


@pytest.mark.parametrize("elbo", ELBOS)
@pytest.mark.parametrize("likelihood", LIKELIHOODS)
def test_every_likelihood_gives_the_same_fit(monkeypatch, likelihood, elbo):
    assert_same(fit_both(monkeypatch, problem(likelihood=likelihood), elbo=elbo, num_particles=2))


@pytest.mark.parametrize("num_particles", [1, 3])
@pytest.mark.parametrize("elbo", ELBOS)
@pytest.mark.parametrize("prior", ["normal", "mixture", "joint", "positive"])
@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_every_estimator_gives_the_same_fit(monkeypatch, estimator, prior, elbo, num_particles):
    options = {"elbo": elbo, "num_particles": num_particles, "estimator": ESTIMATORS[estimator]}
    if (estimator, prior) == ("plain", "joint"):
        options["kl_weight"] = 0.3
    assert_same(fit_both(monkeypatch, problem(prior), **options))


@pytest.mark.parametrize("chunk", [1, 7, 1000])
@pytest.mark.parametrize("prior", ["normal", "mixture", "fan-in", "per-weight"])
def test_chunks_make_no_difference(monkeypatch, prior, chunk):
    monkeypatch.setattr(_direct, "CHUNK", chunk)
    assert_same(fit_both(monkeypatch, problem(prior)))


@pytest.mark.parametrize(
    "options",
    [
        {"kl_weight": pb.kl.blundell(), "batch_size": 2},
        {"kl_weight": 0.0},
        {"clip_norm": 0.1},
        {"scheduler": lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)},
        {"optimizer": functools.partial(torch.optim.SGD, lr=1e-3, momentum=0.9)},
    ],
    ids=["blundell", "no-kl", "clipped", "scheduled", "sgd"],
)
def test_every_option_gives_the_same_fit(monkeypatch, options):
    assert_same(fit_both(monkeypatch, problem("mixture", where="**.weight"), **options))


class Convolutions(nn.Sequential):
    def __init__(self):
        super().__init__(
            nn.Unflatten(1, (1, 2, 2)), nn.Conv2d(1, 3, 2, padding=1), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten()
        )
        self.append(nn.Dropout(0.3)).append(nn.Linear(27, 3))


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.last = nn.Linear(4, 4), nn.Linear(4, 4), nn.LSTM(4, 3)
        self.second.weight = self.first.weight

    def forward(self, x):
        return self.last(self.second(self.first(x).relu()))[0]


@pytest.mark.parametrize("net", [Convolutions, Tied])
def test_networks_with_noise_buffers_and_tied_weights_give_the_same_fit(monkeypatch, net):
    make = lambda: problem(likelihood="categorical", net=net())()  # noqa: E731
    assert_same(fit_both(monkeypatch, make, batch_size=3))


def test_single_precision_gives_the_same_fit_up_to_rounding(monkeypatch):
    def make():
        model, guide, (x, y) = problem("mixture", "categorical")()
        return model.float(), guide.float(), (x.float(), y)

    (first, _), (second, _) = fit_both(monkeypatch, make)
    torch.testing.assert_close(torch.tensor(first.loss), torch.tensor(second.loss), rtol=1e-5, atol=1e-4)


def test_without_gradients_enabled_the_fit_is_the_same():
    found = []
    for context in (torch.enable_grad(), torch.no_grad()):
        torch.manual_seed(3)
        model, guide, data = problem()()
        with context:
            found.append(pb.fit_svi(model, guide, data, optimizer=FUSED, num_epochs=3, seed=1).history.loss)
            assert torch.is_grad_enabled() == (context.__class__ is torch.enable_grad)
    assert found[0] == found[1]
    with torch.inference_mode(), pytest.raises(ValueError, match="inference_mode"):
        pb.fit_svi(model, guide, data, optimizer=FUSED, num_epochs=1)


def test_another_seed_is_another_fit(monkeypatch):
    """The must-fail twin."""
    first = fit_both(monkeypatch, problem())[0]
    second = fit_both(monkeypatch, problem(), seed=2)[1]
    with pytest.raises(AssertionError):
        assert_same((first, second))


def test_the_mixtures_gradient_is_right_far_out_and_at_zero():
    prior = pb.ScaleMixturePrior(0.3, 1.5, math.exp(-6))
    net = nn.Linear(7, 1, bias=False)
    net.weight.data = torch.tensor([[0.0, 1e-9, 1e-3, -0.02, 1.0, -50.0, 1e4]])
    model = pb.BayesianModel(net, prior=prior, likelihood=pb.GaussianLikelihood(1.0), num_data=1)
    (site,) = find_sites(model, (), {})
    value = net.weight.detach().flatten()
    slope, scratch = torch.empty(7), torch.empty(2, 7)
    total = density_of(site).log_prob(value, slope, scratch)
    leaf = value.clone().requires_grad_()
    expected = site.prior.log_prob(leaf.view(1, 7))
    assert_identical(total, expected.detach())
    assert_identical(slope, torch.autograd.grad(expected, leaf)[0])


class Shifted(pb.GaussianLikelihood):
    """A likelihood with a real latent variable, which also changes the targets."""

    def __init__(self):
        super().__init__(0.5)
        self.shift = PyroSample(dist.Normal(torch.tensor(0.3), 1.0))

    def forward(self, output):
        return dist.Normal(output + self.shift, 0.5)

    def as_targets(self, y, dtype):
        return y * self.shift.exp()


class Registering(nn.Linear):
    """A network that halves a gradient by a hook, which must not pile up."""

    def forward(self, x):
        if self.weight.requires_grad:
            self.weight.register_hook(lambda gradient: gradient / 2)
        return super().forward(x)


class Unused(nn.Linear):
    """A network whose only random parameter is not used."""

    def forward(self, x):
        return x[:, :2]


MORE_MODELS = {
    "latent-shift": (lambda: nn.Linear(4, 2), Shifted),
    "unused": (lambda: Unused(4, 2), lambda: pb.GaussianLikelihood(0.5)),
}


@pytest.mark.parametrize(
    ("kind", "estimator"),
    [*((kind, "plain") for kind in MORE_MODELS), ("latent-shift", "lrt"), ("latent-shift", "flipout")],
)
@pytest.mark.parametrize("elbo", ELBOS)
def test_unusual_models_give_the_same_fit(monkeypatch, kind, elbo, estimator):
    net, likelihood = MORE_MODELS[kind]

    def make():
        model = pb.BayesianModel(net(), prior=pb.NormalPrior(), likelihood=likelihood(), num_data=6)
        guide = pb.MeanFieldGuide(model, init=pb.NormalInit(rho=-1.0))
        return model, guide, (torch.randn(6, 4), torch.randn(6, 2))

    assert_same(fit_both(monkeypatch, make, elbo=elbo, estimator=ESTIMATORS[estimator]))


def test_hooks_that_a_network_sets_do_not_pile_up(monkeypatch):
    """With a closed form: Pyro's path shows such a hook the gradient of log-densities of drawn weights, too."""

    def make():
        model, guide = whole(Registering(4, 2))
        return model, guide, (torch.randn(6, 4), torch.randn(6, 2))

    assert_same(fit_both(monkeypatch, make, elbo=TraceMeanField_ELBO))


def clamp(guide):
    for parameter in guide.parameters():
        parameter.data = parameter.data.clamp(-1.5, 1.5)


def load_and_assign(guide):
    state = {name: 0.9 * value for name, value in guide.state_dict().items()}
    guide.load_state_dict(state, assign=True)


def fit_within(guide):
    model = problem()()[0]
    data = torch.ones(6, 4), torch.ones(6, 2)
    pb.fit_svi(model, guide, data, optimizer=functools.partial(torch.optim.SGD, lr=1e-3), num_epochs=2, seed=9)


@pytest.mark.parametrize("change", [clamp, load_and_assign, fit_within, lambda g: g.float().double()])
def test_callbacks_may_replace_the_parameters(monkeypatch, change):
    """Plain gradient descent, whose state does not depend on the parameters' identity."""
    found = []
    for path in ("direct", "pyro"):
        torch.manual_seed(3)
        model, guide, data = problem()()
        options = {"optimizer": functools.partial(torch.optim.SGD, lr=1e-3), "num_epochs": 4, "seed": 1}
        with monkeypatch.context() as patch:
            if path == "pyro":
                patch.setattr(_fit, "obstacle", lambda *_: "forbidden by the test")
            history = pb.fit_svi(
                model, guide, data, callbacks=[lambda _, guide=guide: change(guide)], **options
            ).history
        found.append((history, dict(guide.named_parameters())))
    torch.testing.assert_close(torch.tensor(found[0][0].loss), torch.tensor(found[1][0].loss), rtol=1e-9, atol=1e-9)
    for name, parameter in found[0][1].items():
        torch.testing.assert_close(parameter, found[1][1][name], rtol=1e-9, atol=1e-9)


def test_a_closed_form_divergence_near_the_prior_keeps_its_digits_in_single_precision():
    """A sum of a million small terms: the entropies and log-densities that they are the differences of are large."""
    torch.manual_seed(0)
    net = nn.Linear(1000, 1000, bias=False).float()
    nn.init.zeros_(net.weight)
    model = pb.BayesianModel(net, prior=pb.NormalPrior(), likelihood=pb.GaussianLikelihood(1.0), num_data=1)
    model.float()
    guide = pb.MeanFieldGuide(model, init=pb.NetworkInit(scale=1.001)).float()
    data = torch.zeros(1, 1000, dtype=torch.float32), torch.zeros(1, 1000, dtype=torch.float32)
    still = functools.partial(torch.optim.SGD, lr=0.0)
    history = pb.fit_svi(model, guide, data, optimizer=still, num_epochs=1, elbo=TraceMeanField_ELBO).history
    scale = guide.scales()["net.weight"].double()
    expected = torch.distributions.kl_divergence(dist.Normal(0 * scale, scale), dist.Normal(0 * scale, 1.0)).sum()
    assert history.path == "direct"
    assert history.kl[0] == pytest.approx(float(expected), rel=0.05)


def test_a_network_that_changes_its_weights_in_place_is_refused():
    class Clamping(nn.Linear):
        def forward(self, x):
            with torch.no_grad():
                self.weight.clamp_(-0.1, 0.1)
            return super().forward(x)

    model, guide = whole(Clamping(4, 2))
    with pytest.raises(ValueError, match="in place"):
        pb.fit_svi(model, guide, (torch.randn(6, 4), torch.randn(6, 2)), optimizer=FUSED, num_epochs=1)


def test_a_site_that_appears_late_and_a_prior_that_changes_are_refused():
    class Late(nn.Linear):
        num_calls = 0

        def forward(self, x):
            self.num_calls += 1
            if self.num_calls > 2:
                pyro.factor("late", torch.zeros(()))
            return super().forward(x)

    data = torch.randn(6, 4), torch.randn(6, 2)
    model, guide = whole(Late(4, 2))
    with pytest.raises(ValueError, match="late"):
        pb.fit_svi(model, guide, data, optimizer=FUSED, num_epochs=4)

    model, guide = whole()

    def callback(history):
        setattr(model, "net.weight", PyroSample(dist.Normal(torch.zeros(2, 4), 2.0).to_event(2)))

    with pytest.raises(ValueError, match="prior was changed"):
        pb.fit_svi(model, guide, data, optimizer=FUSED, num_epochs=2, callbacks=[callback])


@pytest.mark.parametrize("where", ["scale", "noise", "value"])
def test_the_first_bad_site_is_the_one_that_pyro_finds(monkeypatch, where):
    messages = []
    for path in ("direct", "pyro"):
        torch.manual_seed(0)
        model, x, y = small_model(likelihood="gaussian-latent", num_data=6)
        guide = pb.MeanFieldGuide(model)
        with torch.no_grad():
            if where == "scale":
                guide.rho.get_parameter("net.0.weight").fill_(-1e6)
            elif where == "noise":
                guide.loc.get_parameter("likelihood.scale").fill_(1e6)
            else:
                guide.loc.get_parameter("net.2.bias").fill_(math.inf)
        with monkeypatch.context() as patch:
            if path == "pyro":
                patch.setattr(_fit, "obstacle", lambda *_: "forbidden by the test")
            with pytest.raises(pb.NonFiniteError) as error:
                pb.fit_svi(model, guide, (x, y), optimizer=FUSED, num_epochs=1, seed=0)
        messages.append(str(error.value))
    assert messages[0] == messages[1]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_scales_have_full_relative_precision(dtype):
    rho = torch.cat([torch.linspace(-80, 79, 5001), torch.linspace(-20, 5, 5001)]).to(dtype)
    for extreme, rtol in ((0.0, 4 * torch.finfo(dtype).eps), (500.0, 1e-6)):  # torch's own is rough above 20
        x = torch.cat([rho, torch.tensor([extreme], dtype=dtype)])
        out, scratch = torch.empty_like(x), torch.empty(2, len(x), dtype=dtype)
        softplus_(x, out, scratch)
        exact = torch.tensor([math.log1p(math.exp(-abs(v))) + max(v, 0.0) for v in x.tolist()])
        torch.testing.assert_close(out.double(), exact, rtol=rtol, atol=0)


def test_the_draws_of_a_posterior_are_those_of_its_guide():
    model, x, _ = small_model(prior=PositivePrior(), likelihood="gaussian-latent")
    guide = pb.MeanFieldGuide(model, init=pb.NormalInit(rho=-1.0))
    found = []
    for subclass in (False, True):
        if subclass:
            guide.__class__ = SubclassedGuide  # goes through Pyro
        torch.manual_seed(4)
        found.append(list(pb.GuidePosterior(guide).draws(3, x)))
    for first, second in zip(*found, strict=True):
        assert list(first) == list(second)
        for name in first:
            assert_identical(first[name], second[name])


# --- the parameters' memory -------------------------------------------------------------------------------------------


def test_after_the_fit_every_parameter_has_memory_of_its_own_again():
    model, guide, data = problem()()
    watched = []

    def callback(history):
        watched.append({p.untyped_storage().data_ptr() for p in guide.parameters()})

    pb.fit_svi(
        model, guide, data, optimizer=functools.partial(torch.optim.Adam, lr=0.1), num_epochs=1, callbacks=[callback]
    )
    parameters = list(guide.parameters())
    assert len(watched[0]) == 2
    for tensors in (parameters, [p.grad for p in parameters]):
        assert len({t.untyped_storage().data_ptr() for t in tensors}) == len(parameters)
        assert all(t.untyped_storage().nbytes() == t.numel() * t.element_size() for t in tensors)


def test_the_memory_format_of_parameters_is_kept():
    net = nn.Sequential(nn.Unflatten(1, (2, 2, 1)), nn.Conv2d(2, 3, (2, 1)), nn.Flatten(), nn.Linear(3, 2))
    model, guide = whole(net.to(memory_format=torch.channels_last))
    strides = [parameter.stride() for parameter in guide.parameters()]
    pb.fit_svi(model, guide, (torch.randn(6, 4), torch.randn(6, 2)), optimizer=FUSED, num_epochs=1)
    assert [parameter.stride() for parameter in guide.parameters()] == strides
    assert not all(parameter.is_contiguous() for parameter in guide.parameters())


def test_trying_the_model_out_leaves_no_trace():
    net = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 2))
    model, guide = whole(net, where=["net.0.*", "net.2.*"])
    pb.fit_svi(model, guide, (torch.randn(6, 4), torch.randn(6, 2)), optimizer=FUSED, num_epochs=5)
    assert int(model.net[1].num_batches_tracked) == 5


def test_parameters_are_put_back_after_an_error_too():
    model, guide, data = problem()()

    def callback(history):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pb.fit_svi(
            model,
            guide,
            data,
            optimizer=functools.partial(torch.optim.Adam, lr=0.1),
            num_epochs=1,
            callbacks=[callback],
        )
    parameters = list(guide.parameters())
    assert len({p.untyped_storage().data_ptr() for p in parameters}) == len(parameters)


# --- steps that are not waited for ------------------------------------------------------------------------------------


def without_waiting(monkeypatch):
    """What fits do on a GPU with a fused optimizer."""
    init = Step.__init__

    def patched(self, *args):
        init(self, *args)
        self.waits = False

    monkeypatch.setattr(Step, "__init__", patched)


def test_steps_that_are_not_waited_for_give_the_same_fit(monkeypatch):
    found = []
    for waits in (True, False):
        torch.manual_seed(0)
        model, guide, data = problem()()
        with monkeypatch.context() as patch:
            if not waits:
                without_waiting(patch)
            found.append(pb.fit_svi(model, guide, data, optimizer=FUSED, num_epochs=5, batch_size=2, seed=1).history)
    assert found[0].loss == found[1].loss


@pytest.mark.parametrize("path", ["direct", "pyro"])
def test_after_a_step_that_is_not_finite_none_has_an_effect(monkeypatch, path):
    """Batch 3 of 6 is bad; what follows is fine, and must not move the parameters."""

    class Fragile(nn.Linear):
        num_calls = 0

        def forward(self, x):
            self.num_calls += self.training
            return super().forward(x) * (math.nan if self.num_calls == 4 else 1.0)

    found = []
    for stops_at in (3, 6):
        torch.manual_seed(0)
        model, guide = whole(Fragile(4, 2))
        x, y = torch.randn(6, 4), torch.randn(6, 2)
        loader = [(x[i : i + 1], y[i : i + 1]) for i in range(stops_at)]
        with monkeypatch.context() as patch:
            if path == "pyro":
                patch.setattr(_fit, "obstacle", lambda *_: "forbidden by the test")
            if stops_at == 3:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # of `num_data`
                    pb.fit_svi(model, guide, loader, optimizer=FUSED, num_epochs=1, seed=1)
            else:
                without_waiting(patch)
                with pytest.raises(pb.NonFiniteError, match="epoch 0, batch 3"):
                    pb.fit_svi(model, guide, loader, optimizer=FUSED, num_epochs=1, seed=1)
        found.append(torch.cat([p.detach().flatten() for p in guide.parameters()]))
    assert torch.equal(*found)
    assert bool(found[0].isfinite().all())


# --- steps that are recorded ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("weight", [1.0, lambda epoch, batch, num: 1.0 + batch / num], ids=["constant", "by-batch"])
@pytest.mark.parametrize("scheduler", [None, lambda o: torch.optim.lr_scheduler.StepLR(o, 4, 0.1)], ids=["", "decay"])
def test_steps_that_are_replayed_give_the_same_fit(monkeypatch, weight, scheduler):
    """With the GPU's part, recording a function and replaying it, played by the function itself."""
    found, num_recorded = [], []
    for recorded in (False, True):
        torch.manual_seed(0)
        model, guide, data = problem()()
        with monkeypatch.context() as patch:
            if recorded:
                without_waiting(patch)
                patch.setattr(_graph, "beside", lambda function: function())
                patch.setattr(_graph, "record", lambda function: (num_recorded.append(1), function)[1])
            options = {"num_epochs": 12, "batch_size": 4, "kl_weight": weight, "scheduler": scheduler, "seed": 1}
            found.append(pb.fit_svi(model, guide, data, optimizer=FUSED, cuda_graph=recorded, **options).history)
    assert found[0].loss == found[1].loss
    assert len(num_recorded) == (2 if scheduler is None else 6)  # each batch size, or batch, at each rate


def test_recording_is_refused_where_it_is_impossible():
    model, guide, data = problem()()
    with pytest.raises(ValueError, match="fused=True"):
        pb.fit_svi(model, guide, data, optimizer=FUSED, num_epochs=1, cuda_graph=True)
    with pytest.raises(ValueError, match="AutoNormal"):
        pb.fit_svi(model, pb.auto_normal(model), data, optimizer=FUSED, num_epochs=1, cuda_graph=True)


@pytest.mark.gpu
@pytest.mark.parametrize("cuda_graph", [False, True])
@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_on_a_gpu_the_losses_are_those_of_the_cpu(estimator, cuda_graph):
    """With scales near zero draws make no difference."""
    found = []
    for device in ("cpu", "cuda"):
        torch.manual_seed(0)
        model, x, y = small_model(num_data=6)
        guide = pb.MeanFieldGuide(model, init=pb.NetworkInit(scale=1e-7))
        options = {"estimator": ESTIMATORS[estimator], "cuda_graph": cuda_graph and device == "cuda", "seed": 1}
        history = pb.fit_svi(model, guide, (x, y), optimizer=FUSED, num_epochs=9, device=device, **options).history
        found.append(torch.tensor(history.expected_log_likelihood))
    torch.testing.assert_close(found[0], found[1], rtol=1e-3, atol=1e-3)


@pytest.mark.gpu
@pytest.mark.parametrize("cuda_graph", [False, True])
def test_a_gpu_is_not_waited_for_in_a_step(cuda_graph):
    model, x, y = small_model(num_data=6)
    guide = pb.MeanFieldGuide(model)
    modes = []

    def callback(history):
        torch.cuda.set_sync_debug_mode("default")  # the epoch is over

    def weight(epoch, batch, num_batches):
        torch.cuda.set_sync_debug_mode("error" if epoch > 5 and batch > 0 else "default")
        modes.append(epoch)
        return 1.0

    try:
        options = {"num_epochs": 8, "batch_size": 2, "device": "cuda", "cuda_graph": cuda_graph, "kl_weight": weight}
        pb.fit_svi(model, guide, (x, y), optimizer=FUSED, callbacks=[callback], **options)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert max(modes) == 7


# --- which path -------------------------------------------------------------------------------------------------------


class Subclass(pb.BayesianModel):
    pass


class SubclassedGuide(pb.MeanFieldGuide):
    pass


class Sampling(nn.Linear):
    """A network with a site of its own."""

    def forward(self, x):
        pyro.factor("penalty", -self.weight.square().sum())
        return super().forward(x)


def whole(net=None, kind=pb.BayesianModel, prior=None, **kwargs):
    model = kind(
        net if net is not None else nn.Linear(4, 2),
        prior=prior or pb.NormalPrior(),
        likelihood=pb.GaussianLikelihood(1.0),
        num_data=6,
        **kwargs,
    )
    return model, pb.MeanFieldGuide(model)


def with_dependent_prior():
    model, guide = whole()
    setattr(
        model,
        "net.0.weight".replace("0.", ""),
        PyroSample(lambda self: dist.Normal(torch.zeros(2, 4), 2.0).to_event(2)),
    )
    return model, guide


def with_hook():
    model, guide = whole()
    model.register_forward_hook(lambda *_: None)
    return model, guide


def with_subclassed_guide():
    model, _ = whole()
    return model, SubclassedGuide(model)


class LearnedPrior(pb.Prior):
    """Its scale is a parameter."""

    def __init__(self):
        self.scale = torch.ones((), requires_grad=True)

    def elementwise(self, name, parameter, module):
        return dist.Normal(torch.zeros(()), self.scale)


class Odd(nn.Linear):
    """A network that takes no copy."""

    def __deepcopy__(self, memo):
        if "weight" in self._buffers:  # it is the model's
            raise TypeError("no copies")
        return Odd(4, 2)


def with_frozen_parameter():
    model, guide = whole()
    guide.loc.get_parameter("net.bias").requires_grad_(False)
    return model, guide


def with_parameter_hook():
    model, guide = whole()
    guide.rho.get_parameter("net.bias").register_hook(lambda gradient: 0 * gradient)
    return model, guide


def with_tied_scales():
    model, guide = whole(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 2)))
    guide.rho.get_submodule("net.1").weight = guide.rho.get_submodule("net.0").weight
    return model, guide


def with_one_scale_per_layer():
    model, guide = whole()
    guide.rho.get_submodule("net").weight = nn.Parameter(torch.tensor(-3.0))
    return model, guide


def with_other_support():
    model, guide = whole()
    guide._sites = [dataclasses.replace(site, transform=dist.transforms.ExpTransform()) for site in guide._sites]
    guide._sites[0] = dataclasses.replace(guide._sites[0], transform=None)
    return model, guide


REASONS = {
    "Subclass": (lambda: whole(kind=Subclass), {}),
    "AutoNormal": (lambda: (model := whole()[0], pb.auto_normal(model)), {}),
    "SubclassedGuide": (with_subclassed_guide, {}),
    "RenyiELBO": (whole, {"elbo": RenyiELBO, "num_particles": 2}),
    "hooks": (with_hook, {}),
    "sites of its own": (lambda: whole(Sampling(4, 2)), {}),
    "depends on other variables": (with_dependent_prior, {}),
    "is learned": (lambda: whole(prior=LearnedPrior()), {}),
    "could not be tried out": (lambda: whole(Odd(4, 2)), {}),
    "frozen": (with_frozen_parameter, {}),
    "parameters of the guide have hooks": (with_parameter_hook, {}),
    "share a parameter": (with_tied_scales, {}),
    "in shape, dtype or device": (with_one_scale_per_layer, {}),
    "different sites": (with_other_support, {}),
}


@pytest.mark.parametrize("reason", REASONS)
def test_whatever_the_direct_path_would_get_wrong_goes_through_pyro(reason):
    make, options = REASONS[reason]
    model, guide = make()
    data = torch.randn(6, 4), torch.randn(6, 2)
    optimizer = functools.partial(torch.optim.SGD, lr=1e-4)
    history = pb.fit_svi(model, guide, data, optimizer=optimizer, num_epochs=1, **options).history
    assert history.path.startswith("pyro: ")
    assert reason in history.path


@pytest.mark.parametrize(
    ("context", "reason"),
    [(pyro.poutine.scale(scale=2.0), "handlers"), (torch.autocast("cpu", torch.bfloat16), "autocast")],
)
def test_what_surrounds_the_fit_counts_too(context, reason):
    model, guide = whole()
    data = torch.randn(6, 4), torch.randn(6, 2)
    optimizer = functools.partial(torch.optim.SGD, lr=1e-4)
    with context:
        history = pb.fit_svi(model, guide, data, optimizer=optimizer, num_epochs=1).history
    assert reason in history.path


def test_a_parameter_that_is_not_learned_stays():
    model, guide = with_frozen_parameter()
    before = guide.loc.get_parameter("net.bias").clone()
    pb.fit_svi(model, guide, (torch.randn(6, 4), torch.randn(6, 2)), optimizer=FUSED, num_epochs=3)
    assert torch.equal(guide.loc.get_parameter("net.bias"), before)


def test_the_path_survives_json():
    model, guide = whole()
    data = torch.randn(6, 4), torch.randn(6, 2)
    optimizer = functools.partial(torch.optim.SGD, lr=1e-4)
    history = pb.fit_svi(model, guide, data, optimizer=optimizer, num_epochs=1).history
    assert pb.History.from_dict(history.to_dict()).path == "direct"
    old = history.to_dict()
    del old["path"]
    assert pb.History.from_dict(old).path == ""
