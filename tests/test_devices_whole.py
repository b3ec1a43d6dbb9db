"""Fits, samplers, predictions and scores on a device that is not the CPU: their numbers, and how often they wait.

See `test_devices.py`.
"""

import functools
import inspect

import pyro.distributions as dist
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import pyro_bnn as pb
from pyro_bnn import kl, metrics, pruning
from pyro_bnn.inference.guides import _mean_field

from .accelerator import DEVICE, Accelerator
from .cases import HIERARCHICAL_PRIORS, LIKELIHOODS, PRIORS
from .chains import quietly
from .test_devices import CPU_ONLY_FORMULAS, FUSED, device, problem  # noqa: F401

LINEAR = {"categorical": 3, "bernoulli": 2, "heteroscedastic": 4, "mixture-density": 18}


@pytest.fixture(autouse=True)
def same_noise_as_on_the_cpu(monkeypatch):
    """On a GPU a mean-field guide draws the noise of all variables together; here the numbers are compared."""
    monkeypatch.setattr(_mean_field, "reads_wait", lambda _: False)


def both(compute, **kwargs):
    """Run the same computation on the CPU and on the device, and compare the results; returns the device's counts."""
    expected = compute(*problem("cpu", **kwargs))
    with Accelerator() as accelerator:
        arguments = problem(DEVICE, **kwargs)
        accelerator.reset()
        assert_same(compute(*arguments), expected)
    return accelerator


def assert_same(found, expected):
    if isinstance(expected, dict):
        assert list(found) == list(expected)
        found, expected = list(found.values()), list(expected.values())
    if isinstance(expected, (list, tuple)):
        assert len(found) == len(expected)
        for a, b in zip(found, expected, strict=True):
            assert_same(a, b)
    elif isinstance(expected, torch.Tensor):
        assert found.device == DEVICE
        torch.testing.assert_close(found.cpu(), expected, equal_nan=True, **CPU_ONLY_FORMULAS)
    else:
        assert found == pytest.approx(expected, rel=1e-9, abs=1e-12, nan_ok=True)


# --- fits -------------------------------------------------------------------------------------------------------------


def fit(model, guide, data, num_epochs=2, **options):
    batches = {} if not isinstance(data, tuple) else {"batch_size": 2}
    return pb.fit_svi(model, data, guide, optimizer=FUSED, num_epochs=num_epochs, seed=0, **batches, **options)


def counts_of_a_fit(num_epochs, make_data=lambda x, y: (x, y)):
    def compute(model, guide, x, y):
        data = make_data(x, y)
        return fit(model, guide, data, num_epochs).history.elbo

    return both(compute)


def test_a_fit_waits_once_an_epoch_and_copies_only_the_order_of_the_rows():
    short, long = counts_of_a_fit(1), counts_of_a_fit(4)
    assert long.num_reads - short.num_reads == 3
    assert long.num_transfers - short.num_transfers == 3


def test_a_fit_from_a_loader_on_the_cpu_copies_each_batch_and_nothing_else():
    """A batch is two tensors. Of three batches in each epoch, the first epoch's are checked."""

    def loader(x, y):
        return DataLoader(TensorDataset(x.cpu(), y.cpu()), batch_size=2)

    short, long = counts_of_a_fit(1, loader), counts_of_a_fit(4, loader)
    assert long.num_reads - short.num_reads == 3
    assert long.num_transfers - short.num_transfers == 3 * 3 * 2


def test_a_fit_goes_on_from_a_checkpoint_on_the_device(tmp_path):
    def compute(model, guide, x, y):
        file = tmp_path / f"{x.device.type}.fit"
        fit(model, guide, (x, y), checkpoint=file)
        again, new, *_ = problem(x.device)
        parts = fit(again, new, (x, y), num_epochs=3, resume=file).history.elbo
        return parts, dict(new.named_parameters())

    both(compute)


def test_a_posterior_is_written_and_read_on_the_device(tmp_path):
    def compute(model, guide, x, y):
        file = tmp_path / f"{x.device.type}.posterior"
        pb.save_posterior(pb.GuidePosterior(guide), file, model)
        loaded = pb.load_posterior(file, model)
        return pb.predict(model, loaded, x, num_samples=3, seed=0).probs

    both(compute)


def test_noise_of_gradients():
    both(lambda model, guide, x, y: pb.gradient_noise(model, guide, x, y, num_samples=3).parameters[0].noise)


def test_swag():
    def compute(model, guide, x, y):
        swag = pb.SWAG(guide, rank=2, start=1)
        fit(model, guide, (x, y), num_epochs=5, callbacks=[swag])
        return swag.posterior(model).sample(3, seed=0)

    both(compute, make_guide=pb.DeltaGuide)


@pytest.mark.parametrize("sampler", [pytest.param(pb.SGLD(lr=1e-3), marks=pytest.mark.nightly), pb.SGHMC(lr=1e-3)])
def test_stochastic_gradient_sampling_reads_at_the_end_of_an_epoch_only(sampler):
    """A step can do nothing if a flag on the device is set."""

    def counted(num_epochs):
        def compute(model, guide, x, y):
            options = {"sampler": sampler, "num_epochs": num_epochs, "num_samples": 4, "num_chains": 1, "seed": 0}
            return quietly(pb.fit_sgmcmc, model, (x, y), batch_size=2, **options).sample(4, seed=0)

        return both(compute, make_guide=lambda model: None)

    short, long = counted(4), counted(8)
    assert long.num_reads - short.num_reads == 4
    assert long.num_transfers - short.num_transfers == 4


# --- samplers ---------------------------------------------------------------------------------------------------------


def draws(sampler, model, x, y, num_samples=4):
    fit_quietly = functools.partial(quietly, pb.fit_mcmc, num_warmup=2, num_chains=2, seed=0)
    if any(True for _ in model.parameters()):
        with pytest.warns(UserWarning, match="stay at their present values"):
            return fit_quietly(model, (x, y), sampler=sampler, num_samples=num_samples).sample(8, seed=0)
    return fit_quietly(model, (x, y), sampler=sampler, num_samples=num_samples).sample(8, seed=0)


def sampled(sampler, **kwargs):
    kwargs["net"] = nn.Linear(4, LINEAR.get(kwargs.get("likelihood", "categorical"), 2))
    return both(lambda model, guide, x, y: draws(sampler, model, x, y), make_guide=lambda model: None, **kwargs)


@pytest.mark.daily("categorical")
@pytest.mark.parametrize("likelihood", LIKELIHOODS)
def test_draws_with_any_likelihood(likelihood):
    net = nn.Linear(4, LIKELIHOODS[likelihood][1])
    compute = lambda model, guide, x, y: draws(pb.HMC(max_steps=2), model, x, y)  # noqa: E731
    both(compute, make_guide=lambda model: None, net=net, likelihood=likelihood)


@pytest.mark.daily("hierarchical")
@pytest.mark.parametrize("prior", PRIORS)
def test_draws_with_any_prior_copy_nothing_to_the_device(prior):
    """Some numbers are copied when the sampler starts, but none in the evaluations of the density, over a hundred."""
    counts = sampled(pb.HMC(max_steps=2), prior=PRIORS[prior])
    assert counts.num_transfers <= (30 if prior in HIERARCHICAL_PRIORS else 4)


@pytest.mark.parametrize(("sampler", "limit"), [(pb.NUTS(max_tree_depth=6), 2.0), (pb.HMC(max_steps=8), 0.0)])
def test_reads_of_a_sampler_for_each_leapfrog_step(device, sampler, limit):  # noqa: F811
    """NUTS reads whether a subtree has ended after each step, and four numbers for each subtree."""
    calls = []

    def standard_normal(z):
        calls.append(len(z))
        return 0.5 * z.square().sum(-1), z

    kernel = sampler.kernel(standard_normal, torch.zeros(1, 3, device=DEVICE))
    kernel.step_size.fill_(0.1)
    device.reset()
    calls.clear()
    for _ in range(5):
        kernel.draw()
    assert device.num_reads <= limit * len(calls)
    assert not device.transfers


def test_chains_read_twice_for_each_draw_in_addition():
    def counted(num_samples):
        compute = lambda model, guide, x, y: draws(pb.HMC(max_steps=2), model, x, y, num_samples)  # noqa: E731
        return both(compute, make_guide=lambda model: None, net=nn.Linear(4, 3))

    assert counted(6).num_reads - counted(4).num_reads <= 4


def test_laplace():
    """The search for the mode by torch's L-BFGS reads numbers in each iteration; all other reads are counted here."""

    def compute(model, guide, x, y):
        posterior = pb.fit_laplace(model, (x, y), seed=0)
        return posterior.log_evidence, posterior.location, posterior.sample(3, seed=0)

    counts = both(compute, make_guide=lambda model: None, net=nn.Linear(4, 3))
    search = "optimizer.step(closure)"
    lines = inspect.getsourcelines(inspect.getmodule(pb.fit_laplace))[0]
    here = {
        int(place.partition(":")[2]): n
        for place, n in counts.reads.items()
        if place.rpartition("/")[2].startswith("laplace.py")
    }
    of_search = sum(n for line, n in here.items() if search in lines[line - 1])
    assert counts.num_reads - of_search <= 80
    assert not counts.transfers


@pytest.mark.daily("diagonal-parameter", "kronecker-layer", "full-network")
@pytest.mark.parametrize("per", ["layer", "parameter", "network"])
@pytest.mark.parametrize("structure", ["diagonal", "kronecker", "full"])
def test_gauss_newton_with_the_prior_of_most_evidence(structure, per):
    def compute(model, guide, x, y):
        posterior = pb.fit_gauss_newton(model, (x, y), structure=structure, prior_precision="evidence", per=per)
        return posterior.log_evidence, posterior.sample(3, seed=0)

    both(compute, make_guide=lambda model: None, net=nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 3)))


# --- predictions ------------------------------------------------------------------------------------------------------


@pytest.mark.daily("categorical", "mixture-density", "own", "poisson")
@pytest.mark.parametrize("likelihood", LIKELIHOODS)
def test_predictions_wait_only_at_begin_and_end(likelihood):
    def counted(num_samples):
        def compute(model, guide, x, y):
            prediction = pb.predict(model, guide, x, y=y, num_samples=num_samples, batch_size=4, seed=0)
            return prediction.expectation, prediction.total, prediction.epistemic, prediction.log_density

        return both(compute, likelihood=likelihood)

    few, many = counted(2), counted(5)
    assert few.reads == many.reads
    assert few.transfers == many.transfers


def test_a_point_prediction():
    both(lambda model, guide, x, y: pb.predict_point(model, guide.median(), x, y=y).nll)


NUMBERS = [name for name, (*_, by_hand) in LIKELIHOODS.items() if by_hand is not None]


@pytest.mark.daily("gaussian-fixed", "mixture-density", "poisson")
@pytest.mark.parametrize("likelihood", NUMBERS)
def test_what_is_computed_from_predicted_numbers(likelihood):
    def compute(model, guide, x, y):
        prediction = pb.predict(model, guide, x, y=y, num_samples=3, keep_draws=True, seed=0)
        computed = [prediction.log_prob(y), prediction.cdf(y), prediction.score(), prediction.variances()]
        drawn = prediction.sample(2, seed=0)
        return [*computed, drawn] if likelihood == "poisson" else [*computed, drawn, prediction.quantile([0.1, 0.9])]

    both(compute, likelihood=likelihood)


def test_what_is_computed_from_predicted_classes():
    def compute(model, guide, x, y):
        prediction = pb.predict(model, guide, x, y=y, num_samples=3, keep_draws=True, seed=0)
        probs = prediction.probs
        scores = [
            metrics.accuracy(probs, y),
            metrics.negative_log_likelihood(probs, y),
            metrics.brier_score(probs, y),
            metrics.expected_calibration_error(probs, y),
            metrics.adaptive_calibration_error(probs, y),
            metrics.calibration_bins(probs, y).confidence,
            metrics.ood_scores(prediction.total[:3], prediction.total[3:]).auroc,
            metrics.calibration_error_by_chance(probs, num_samples=5).mean().item(),
        ]
        return scores, prediction.logit_variance, prediction.labels, prediction.max_probability

    both(compute)


def test_scores_of_numbers():
    def compute(model, guide, x, y):
        return [
            metrics.root_mean_squared_error(x, y),
            metrics.interval_coverage(x - 1, x + 1, y),
            metrics.crps_from_draws(torch.stack([x, x + 1]), y),
            metrics.crps_of_normal_mixture(x[..., None].softmax(-1), x[..., None], x[..., None].exp(), y),
        ]

    both(lambda model, guide, x, y: compute(model, guide, x[:, :2], y), likelihood="gaussian-fixed")


def test_comparisons():
    def compute(model, guide, x, y):
        result = pb.compare(model, {"a": guide, "b": pb.MeanFieldGuide(model)}, x, y=y, num_samples=40)
        return [{name: score.value for name, score in method.scores.items()} for method in result.methods]

    both(compute)


def test_pruning():
    def compute(model, guide, x, y):
        pruned = pruning.prune(guide, fraction=0.5)
        return pb.predict(model, pruned, x, num_samples=3, seed=0).probs, pruned.median()

    both(compute)


@pytest.mark.parametrize("closed_form", [True, False])
def test_divergences_of_distributions(closed_form):
    def compute(model, guide, x, y):
        p, q = dist.Normal(x, 1.0 + 0 * x).to_event(2), dist.Normal(0 * x, 2.0 + 0 * x).to_event(2)
        return kl.divergence(p, q, closed_form=closed_form, num_samples=50, seed=0).value

    both(compute)
