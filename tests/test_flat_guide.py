"""A user's family of guides declares how it takes the direct path, and gives Pyro's numbers there."""

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import Trace_ELBO, TraceMeanField_ELBO

import pyro_bnn as pb
from pyro_bnn.inference.guides import FlatGuide, FlatState, ParameterVector, lent, tree
from pyro_bnn.inference.joint import LOG_ROOT_TAU, find_sites

from .fits import FROZEN, assert_same, fit, fit_both, problem, whole
from .tolerances import agrees_in_mean, assert_identical


class CommonScaleGuide(FlatGuide):
    """Independent Gaussians with a common standard deviation."""

    def __init__(self, model):
        super().__init__()
        self.sites = tuple(find_sites(model, (), {}))
        self.loc = tree({site.name: pb.NormalInit()(site)[0] for site in self.sites})
        self.common = tree({"log_scale": self.sites[0].start.new_tensor(-1.0)})

    def _gaussian(self, site, loc, log_scale):
        base = dist.Normal(loc, log_scale.exp()).to_event(site.unconstrained_event_dim)
        return base if site.transform is None else dist.TransformedDistribution(base, [site.transform])

    def forward(self, *args, **kwargs):
        draws = {}
        log_scale = self.stated("common", "log_scale")
        for site in self.sites:
            loc = self.stated("loc", site.name)
            draws[site.name] = pyro.sample(site.name, self._gaussian(site, loc, log_scale))
        return draws

    def draws(self, num_samples):
        log_scale, locations = self.tree("common").get_parameter("log_scale").detach(), self.values("loc")
        for _ in range(num_samples):
            yield {s.name: self._gaussian(s, locations[s.name], log_scale).sample() for s in self.sites}

    def median(self, *args, **kwargs):
        return self.constrained(self.values("loc"))

    def flat(self, joint, *, noise, closed_form):
        if noise is not None:
            raise ValueError("this family serves no estimator.")
        return lent(CommonScaleState(joint, *self._vectors(joint)))

    def _vectors(self, joint):
        yield ParameterVector(self.tree("loc"), joint.layout.shapes)
        yield ParameterVector(self.tree("common"), ["log_scale"])


class CommonScaleState(FlatState):
    """The gradient in log s is s (g . e) - weight P, with e the noise and P the number of weights."""

    factor = 1.0

    def __init__(self, joint, loc, common):
        super().__init__(joint, {"loc": loc, "common": common})
        self._loc, self._log_scale, self._pieces = loc.value, common.value, joint.pieces()
        self.value, self.value_grad = torch.empty_like(loc.value), torch.zeros_like(loc.value)
        self._noise, self._common_grad = torch.empty_like(loc.value), torch.zeros_like(common.value)
        loc.set_gradient(self.value_grad)
        common.set_gradient(self._common_grad)

    @property
    def gradients(self):
        return [self.value_grad, self._common_grad]

    def update(self):
        self._scale = self._log_scale.exp()

    def draw(self):
        for view in self.joint.layout.views(self._noise).values():
            view.normal_()
        torch.addcmul(self._loc, self._scale, self._noise, out=self.value)
        self.value_grad.zero_()
        return self.joint.constrained(self.leaves(self.value, self.value_grad))

    def pull_back(self, weight):
        log_p = torch.zeros((), dtype=torch.float64)
        for piece in self._pieces:
            slope, *scratch = self._loc.new_empty(3, piece.part.stop - piece.part.start)
            log_p += piece.density.log_prob(self.value[piece.part], slope, scratch)
            self.value_grad[piece.part] -= weight * slope
        count = len(self._noise)
        self._common_grad.copy_(self.factor * self._scale * self.value_grad.dot(self._noise) - weight * count)
        log_q = -0.5 * self._noise.square().sum() - count * (self._log_scale.sum() + LOG_ROOT_TAU)
        return log_q.double() - log_p


class WrongState(CommonScaleState):
    """Its gradient in the scale is a little too large."""

    factor = 1.001


class WrongGuide(CommonScaleGuide):
    """A family with a mistake in its gradients."""

    def flat(self, joint, *, noise, closed_form):
        return lent(WrongState(joint, *self._vectors(joint)))


@pytest.mark.parametrize("num_particles", [1, 3])
@pytest.mark.parametrize("likelihood", ["categorical", "gaussian-latent"])
@pytest.mark.parametrize("prior", ["normal", "mixture", "laplace", "positive"])
def test_it_goes_the_direct_path_and_gives_the_same_fit(monkeypatch, prior, likelihood, num_particles):
    make = problem(prior, likelihood, make_guide=CommonScaleGuide)
    assert_same(fit_both(monkeypatch, make, elbo=Trace_ELBO(num_particles=num_particles), batch_size=4, kl_weight=0.7))


def test_a_family_with_a_mistake_does_not():
    """The must-fail twin: gradients that are not those of its `forward`."""
    found = []
    for kind in (CommonScaleGuide, WrongGuide):
        torch.manual_seed(0)
        model, x, y = whole()
        guide = kind(model)
        assert fit(model, guide, x, y, optimizer=FROZEN).history.path == "direct"
        found.append(guide.common.log_scale.grad.clone())
    with pytest.raises(AssertionError):
        assert_identical(*found)
    torch.testing.assert_close(*found, rtol=0.1, atol=0.1)


def test_what_overrides_its_forward_is_not_the_family_any_more():
    class Loud(CommonScaleGuide):
        def forward(self, *args, **kwargs):
            return super().forward(*args, **kwargs)

    model, x, y = whole()
    assert fit(model, Loud(model), x, y).history.path == "pyro: Loud overrides forward"
    assert fit(model, CommonScaleGuide(model), x, y).history.path == "direct"


@pytest.mark.nightly
def test_under_the_mean_field_elbo_it_may_draw_all_the_same():
    model, x, y = whole()
    guide = CommonScaleGuide(model)
    kls = torch.tensor(
        fit(model, guide, x, y, optimizer=FROZEN, num_epochs=2000, elbo=TraceMeanField_ELBO()).history.kl
    )
    scale = guide.common.log_scale.detach().exp()
    gaussians = [dist.Normal(guide.median()[name], scale) for name in model.site_names]
    exact = sum(torch.distributions.kl_divergence(q, dist.Normal(0.0, 0.7)).sum() for q in gaussians)
    assert agrees_in_mean(kls, exact)
    assert not agrees_in_mean(kls, exact + 1.0)


def test_its_posterior_predicts_and_its_fit_helps():
    model, x, y = whole()
    posterior = fit(model, CommonScaleGuide(model), x, y, num_epochs=300)
    elbos = posterior.history.elbo
    assert sum(elbos[-50:]) > sum(elbos[:50])
    assert pb.predict(model, posterior, x, num_samples=20).probs.shape == (6, 3)
    assert len({parameter.untyped_storage().data_ptr() for parameter in posterior.guide.parameters()}) == 5
