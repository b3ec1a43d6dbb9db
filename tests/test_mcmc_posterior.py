"""Chains as a posterior: predictions, files, ArviZ and diagnostics; and chains of Pyro's own MCMC."""

import copy
import sys
import warnings
from unittest import mock

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import HMC, MCMC, NUTS, RandomWalkKernel
from pyro.infer.mcmc.mcmc_kernel import MCMCKernel
from torch import nn

import pyro_bnn as pb
from pyro_bnn.inference.joint import NetworkPotential
from pyro_bnn.inference.mcmc import ChainStatistics, Convergence, Diagnostics, Modes, convergence, judge
from pyro_bnn.inference.mcmc._diagnostics import diagnose

from .cases import small_model, small_net
from .chains import fit_briefly, quietly
from .test_exact import Problem


@pytest.fixture(scope="module")
def fitted():
    torch.manual_seed(0)
    torch.set_default_dtype(torch.float32)
    x = torch.randn(20, 4)
    y = (x[:, 0] > 0).long() + (x[:, 1] > 0).long()
    model = pb.BayesianModel(small_net(), prior=pb.NormalPrior(1.0), likelihood=pb.CategoricalLikelihood(), num_data=20)
    posterior = quietly(pb.fit_nuts, model, (x, y), num_samples=50, num_warmup=50, num_chains=2, compile=True, seed=0)
    return model, x, y, posterior


def test_predict_takes_chains_like_any_posterior(fitted):
    model, x, y, posterior = fitted
    prediction = pb.predict(model, posterior, x, y=y, num_samples=100)
    assert pb.metrics.accuracy(prediction.probs, y) > 0.8
    assert prediction.epistemic.mean() > 0.01
    assert posterior.chains["net.0.weight"].dtype == torch.float32
    means = [pb.predict_point(model, draw, x).probs for draw in posterior.draws(100)]
    torch.testing.assert_close(prediction.probs, torch.stack(means).mean(0))


def test_predict_takes_what_short_chains_have():
    model, x, y = small_model(num_data=6)
    posterior = fit_briefly(model, x, y)
    assert pb.predict(model, posterior, x).num_samples == 8


def test_draws_are_spread_evenly_and_never_twice(fitted):
    *_, posterior = fitted
    flat = posterior.chains["net.0.bias"].flatten(0, 1)
    drawn = posterior.sample(4)["net.0.bias"]
    assert torch.equal(drawn, flat[[12, 37, 62, 87]])
    assert torch.equal(posterior.sample(100)["net.0.bias"], flat)
    with pytest.raises(ValueError, match="only 100 draws are stored"):
        posterior.sample(101)


def test_chains_survive_a_file(fitted, tmp_path):
    model, x, _, posterior = fitted
    pb.save_posterior(posterior, tmp_path / "chains", model)
    loaded = pb.load_posterior(tmp_path / "chains", model)
    assert torch.equal(pb.predict(model, posterior, x).probs, pb.predict(model, loaded, x).probs)
    assert loaded.status == posterior.status
    assert torch.equal(loaded.statistics.energy, posterior.statistics.energy)


def test_arviz_gets_everything(fitted):
    model, x, y, posterior = fitted
    data = posterior.to_arviz(model=model, x=x, y=y)
    assert set(data.groups()) == {
        "posterior", "sample_stats", "posterior_predictive", "log_likelihood", "observed_data",
    }  # fmt: skip
    assert data.posterior["net.0.weight"].shape == (2, 50, 5, 4)
    assert data.posterior_predictive["obs"].shape == data.log_likelihood["obs"].shape == (2, 50, 20)
    by_hand = [pb.predict_point(model, draw, x, y=y).log_density for draw in posterior.draws(100)]
    ours = torch.as_tensor(np.array(data.log_likelihood["obs"])).flatten(0, 1)
    torch.testing.assert_close(ours, torch.stack(by_hand), rtol=1e-5, atol=1e-6)
    assert int(data.sample_stats["diverging"].sum()) == int(posterior.statistics.diverging.sum())
    with pytest.raises(ValueError, match="go together"):
        posterior.to_arviz(model=model)


def test_the_log_density_is_that_of_the_draws(fitted):
    model, x, y, posterior = fitted
    potential = NetworkPotential(copy.deepcopy(model).double(), x.double(), y)
    flat = {name: values.flatten(0, 1).double() for name, values in posterior.chains.items()}
    log_density = -potential.value(potential.unconstrain(flat))
    torch.testing.assert_close(log_density, posterior.statistics.log_density.flatten(), rtol=1e-4, atol=1e-4)


# ---- chains that Pyro's own MCMC has drawn


@pytest.fixture(scope="module")
def pyros():
    """Pyro's NUTS on the same kind of model, with its chains one after the other."""
    torch.manual_seed(0)
    torch.set_default_dtype(torch.float64)
    x = torch.randn(20, 4)
    y = (x[:, 0] > 0).long() + (x[:, 1] > 0).long()
    model = pb.BayesianModel(small_net(), prior=pb.NormalPrior(1.0), likelihood=pb.CategoricalLikelihood(), num_data=20)
    return model, x, y, run_pyro(NUTS(model, max_tree_depth=4), x, y, num_samples=25, warmup_steps=15)


def run_pyro(kernel, *args, num_samples=6, warmup_steps=6, num_chains=2):
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="num_chains=")  # more than there are processors: one after the other
        sizes = {"num_samples": num_samples, "warmup_steps": warmup_steps, "num_chains": num_chains}
        with mock.patch("torch.multiprocessing.cpu_count", return_value=1):
            mcmc = MCMC(kernel, **sizes, disable_progbar=True)
    mcmc.run(*args)
    return mcmc


def test_pyros_chains_are_a_posterior_like_any_other(pyros, tmp_path):
    model, x, y, mcmc = pyros
    posterior = quietly(pb.MCMCPosterior.from_pyro, mcmc, model=model, x=x, seconds=3.0)
    raw = mcmc.get_samples(group_by_chain=True)
    assert set(posterior.chains) == set(raw) == set(model.site_names)
    assert posterior.num_chains == 2
    assert posterior.num_stored == 50
    by_hand = [
        pb.predict_point(model, {name: value[chain, draw] for name, value in raw.items()}, x).probs
        for chain in range(2)
        for draw in range(25)
    ]
    prediction = pb.predict(model, posterior, x, num_samples=50)
    torch.testing.assert_close(prediction.probs, torch.stack(by_hand).mean(0))
    report = posterior.diagnose(model, x[:3])
    assert report.bfmi is None
    assert "BFMI not reported" in str(report)
    expected = convergence(torch.stack(by_hand).view(2, 25, 20, 3)[:, :, :3].flatten(2))
    torch.testing.assert_close(
        report.predictions.r_hat, expected.r_hat, rtol=0.02, atol=0
    )  # repeats tie but for rounding
    assert "Pyro's NUTS: 2 chains of 25 draws in 3 s" in posterior.status.message
    assert "predictions: " in posterior.status.message
    pb.save_posterior(posterior, tmp_path / "chains", model)
    loaded = pb.load_posterior(tmp_path / "chains", model)
    assert torch.equal(pb.predict(model, loaded, x, num_samples=50).probs, prediction.probs)
    assert loaded.statistics.energy is None
    assert set(loaded.to_arviz(model=model, x=x, y=y).sample_stats) == {"diverging"}
    result = pb.compare(model, {"pyro": posterior, "again": loaded}, x, y=y, num_samples=50)
    assert len(result.pairs) == 1


def test_only_what_pyro_reports_is_in_the_statistics(pyros):
    posterior = quietly(pb.MCMCPosterior.from_pyro, pyros[-1])
    reported = {name for name, value in vars(posterior.statistics).items() if value is not None}
    assert reported == {"diverging"}
    assert posterior.seconds is None
    assert "latent variables: " in posterior.status.message
    walk = run_pyro(RandomWalkKernel(lambda: pyro.sample("w", dist.Normal(0.0, 1.0))))
    posterior = quietly(pb.MCMCPosterior.from_pyro, walk)
    assert posterior.statistics.diverging is None
    assert posterior.diagnose().num_divergences is None
    assert "Pyro's RandomWalkKernel: 2 chains of 6 draws, divergences not reported" in posterior.status.message
    assert posterior.to_arviz().groups() == ["posterior"]


def test_pyros_divergences_are_those_of_the_draws():
    """The density is zero in a region into which long steps lead."""

    def model():
        w = pyro.sample("w", dist.Normal(0.0, 1.0))
        pyro.factor("wall", torch.where(w < 0.5, 0.0, -1e6) - 0 * w)

    torch.manual_seed(0)
    mcmc = run_pyro(HMC(model, step_size=1.0, num_steps=2, adapt_step_size=False), num_samples=40)
    with pytest.warns(pb.ConvergenceWarning, match="divergent trajectories") as caught:
        posterior = pb.MCMCPosterior.from_pyro(mcmc)
    assert caught[0].filename == __file__
    diverging = posterior.statistics.diverging
    assert diverging.shape == (2, 40)
    for chain in range(2):
        rows = mcmc.diagnostics()["divergences"][f"chain {chain}"]
        assert diverging[chain].nonzero().flatten().tolist() == rows
        assert 0 < len(rows) < 40
    draws = posterior.chains["w"]
    repeats = torch.cat([torch.zeros(2, 1, dtype=torch.bool), draws[:, 1:] == draws[:, :-1]], 1)
    assert repeats[:, 1:][diverging[:, 1:]].all()  # a trajectory that diverged was rejected
    assert posterior.diagnose().num_divergences == int(diverging.sum())
    assert not posterior.status


def test_pyro_runs_that_are_no_posterior_are_refused(pyros):
    model, x, _, mcmc = pyros
    with pytest.raises(ValueError, match="holds no draws"):
        pb.MCMCPosterior.from_pyro(MCMC(NUTS(model), 5))
    with pytest.raises(ValueError, match=r"`mcmc` must be a pyro\.infer\.MCMC, got NUTS"):
        pb.MCMCPosterior.from_pyro(NUTS(model))
    with pytest.raises(ValueError, match="holds 3 draws of each chain"):
        pb.MCMCPosterior.from_pyro(run_pyro(NUTS(lambda: pyro.sample("w", dist.Normal(0.0, 1.0))), num_samples=3))
    with pytest.raises(ValueError, match="`k` is discrete"):
        pb.MCMCPosterior.from_pyro(run_pyro(Counting(), num_samples=5))
    with pytest.raises(ValueError, match="go together"):
        pb.MCMCPosterior.from_pyro(mcmc, model=model)
    other, _, _ = small_model(net=nn.Sequential(nn.Linear(4, 7), nn.Tanh(), nn.Linear(7, 3)))
    posterior = quietly(pb.MCMCPosterior.from_pyro, mcmc)
    with pytest.raises(ValueError, match="belongs to another model"):
        pb.MCMCPosterior.from_pyro(mcmc, model=other, x=x)
    with pytest.raises(ValueError, match="belong"):
        pb.predict(other, posterior, x)


class Counting(MCMCKernel):
    """Draws a whole number."""

    initial_params = {"k": torch.tensor(0)}  # noqa: RUF012

    def setup(self, warmup_steps, *args, **kwargs):
        self.transforms = {}

    def sample(self, params):
        return {"k": params["k"] + 1}


def test_chains_of_another_model_are_refused(fitted):
    model, x, _, posterior = fitted
    other, _, _ = small_model(net=nn.Sequential(nn.Linear(4, 7), nn.Tanh(), nn.Linear(7, 3)))
    other.float()
    for use in (lambda: posterior.diagnose(other, x), lambda: posterior.to_arviz(model=other, x=x)):
        with pytest.raises(ValueError, match="belongs to another model"):
            use()
    with pytest.raises(ValueError, match="the start is from another model"):
        pb.fit_nuts(other, (torch.zeros(20, 4).float(), torch.arange(20) % 3), init=posterior)
    with pytest.raises(ValueError, match=r"`x` is torch\.float64"):
        posterior.diagnose(model, x.double())
    with pytest.raises(ValueError, match="cannot take `x`"):
        posterior.diagnose(model, x[:, :2])
    with pytest.raises(ValueError, match="must be finite"):
        posterior.diagnose(model, x * float("nan"))


def known_chains():
    """A straight line and two chains of 50 draws: for slope and for intercept each whole number from 1 to 100.

    At inputs such as 0.37, with two decimals and no factor of 100, no two lines come nearer to each other than 0.01, so
    that rounding does not decide the ranks of which R-hat is made.
    """
    slopes, intercepts = (torch.tensor([i * factor % 101 for i in range(1, 101)]) for factor in (37, 59))
    model = pb.BayesianModel(
        nn.Linear(1, 1), prior=pb.NormalPrior(1.0), likelihood=pb.GaussianLikelihood(0.25), num_data=3
    )
    samples = {
        "net.weight": slopes.to(torch.float64).view(2, 50, 1, 1),
        "net.bias": intercepts.to(torch.float64).view(2, 50, 1),
    }
    nothing = ChainStatistics(None, None, None, None, None, None, None, None)
    return model, pb.MCMCPosterior(samples, nothing, pb.Status(True, ""), sampler="NUTS")


def test_diagnostics_are_those_of_arviz():
    import arviz

    model, posterior = known_chains()
    x = torch.tensor([[-1.41], [0.37], [2.13]])
    report = posterior.diagnose(model, x)
    r_hat = arviz.rhat(posterior.to_arviz())
    expected = [float(r_hat[name].max()) for name in posterior.chains]
    assert report.latents.worst_r_hat == pytest.approx(max(expected), rel=1e-10)
    lines = posterior.chains["net.weight"][..., 0] * x[:, 0] + posterior.chains["net.bias"]  # (2, 50, 3)
    assert lines.flatten(0, 1).sort(0).values.diff(dim=0).min() > 0.009
    for row in range(3):
        alone = arviz.rhat(lines[..., row].numpy())
        assert report.predictions.r_hat[row] == pytest.approx(float(alone), rel=1e-10)
        bulk = arviz.ess(lines[..., row].numpy(), method="bulk")
        assert report.predictions.ess_bulk[row] == pytest.approx(float(bulk), rel=1e-8)
    assert report.predictions.r_hat[3:].isnan().all()  # the noise is the same in all draws
    assert "predictions" in str(report)
    with pytest.raises(ValueError, match="go together"):
        posterior.diagnose(model)


def test_one_chain_is_judged_by_its_halves():
    problem = Problem()
    posterior = quietly(
        pb.fit_nuts, problem.model, (problem.x, problem.y), num_samples=200, num_warmup=100, num_chains=1, seed=0
    )
    assert "1 chain of 200 draws" in posterior.status.message
    assert 0.99 < posterior.diagnose().latents.worst_r_hat < 1.1
    drifting = torch.linspace(0, 1, 100).reshape(1, 100, 1)
    assert convergence(drifting).worst_r_hat > 1.5


def test_a_single_chain_that_jumps_in_the_middle_is_seen():
    """Its halves disagree, while each of them agrees with itself."""
    noise = torch.randn(1, 400, 1)
    jump = (torch.arange(400) >= 200)[None, :, None].double()
    assert convergence(noise).worst_r_hat < 1.05
    jumping = convergence(noise + 3 * jump)
    assert jumping.worst_r_hat > 1.5
    halves = (noise + 3 * jump).reshape(2, 200, 1)  # of two chains that disagree R-hat is known to be large
    assert jumping.worst_r_hat == pytest.approx(convergence(halves).worst_r_hat, rel=1e-10)


def test_chains_that_do_not_move_are_a_problem():
    values = {"w": torch.ones(2, 10, 1)}
    numbers = torch.randn(2, 10)
    statistics = ChainStatistics(
        numbers, numbers, numbers, numbers > 9, numbers.long(), numbers[:, 0], numbers, seconds=1.0
    )
    report = pb.MCMCPosterior(values, statistics, pb.Status(True, ""), sampler="NUTS").diagnose()
    assert any("did not move" in problem for problem in report.problems)
    one_moved = Diagnostics(
        2, ChainStatistics(), torch.tensor([float("nan"), 0.1]), report.latents, None
    )  # BFMI of the other: NaN
    assert any("the smallest BFMI is 0.10" in problem for problem in one_moved.problems)


def test_a_status_of_many_weights_reads_only_those_that_it_judges():
    draws = torch.randn(2, 8, 1)
    samples = {"w": draws.expand(2, 8, 10**10), "b": draws}  # a copy would take 1.3 TB
    found = diagnose(samples, ChainStatistics(), None, None, max_quantities=4).latents
    assert torch.equal(found.r_hat, convergence(draws).r_hat.expand(4))


def test_chains_that_never_moved_have_an_infinite_r_hat_and_arviz_says_nothing_of_its_divisions():
    found = convergence(torch.tensor([-1.0, 1.0, 2.0])[:, None, None].expand(3, 20, 2).clone())
    assert bool(found.r_hat.isinf().all())


@pytest.mark.parametrize(("num_chains", "enough"), [(1, 8), (2, 4)])
def test_too_few_draws_are_called_that_and_not_constant(num_chains, enough):
    values = torch.randn(num_chains, enough, 3)
    assert convergence(values).is_known
    assert not convergence(values).r_hat.isnan().any()
    few = convergence(values[:, 1:])
    assert not few.is_known
    assert str(few) == "too few draws for R-hat"


def test_a_status_says_that_there_are_too_few_draws():
    model, x, y = small_model(num_data=6)
    with pytest.warns(pb.ConvergenceWarning, match="^There are too few draws to judge: .*sample longer"):
        chain = pb.fit_nuts(model, (x, y), num_samples=5, num_warmup=5, num_chains=1, seed=0)
    assert chain.status.label == "unknown"
    assert "constant" not in chain.status.message


def test_a_single_chain_disagrees_with_itself():
    problems = Diagnostics(
        1, ChainStatistics(), None, convergence(torch.linspace(0, 1, 100).view(1, 100, 1)), None
    ).problems
    assert any("the halves of the chain disagree" in problem for problem in problems)


@pytest.mark.parametrize(
    ("r_hat", "ess", "divergences", "words", "is_slight"),
    [
        (1.009, 500, 0, "", False),
        (1.010486, 500, 0, "is 1.0105, slightly above 1.01: sample longer for exact figures.", True),
        (1.05, 210, 0, "is 1.050, slightly above 1.01: sample longer for exact figures.", True),
        (1.02, 190, 0, "is 1.020, slightly above 1.01: sample longer", False),
        (1.02, 500, 1, "is 1.020, slightly above 1.01: sample longer", False),
        (1.06, 500, 0, "is 1.060, above 1.01: the chains disagree; warm up and sample longer", False),
    ],
)
def test_an_r_hat_near_its_limit_is_told_as_slight(r_hat, ess, divergences, words, is_slight):
    found = Convergence(*(torch.tensor([value], dtype=torch.float64) for value in (r_hat, ess, ess)))
    report = Diagnostics(4, ChainStatistics(diverging=torch.arange(4) < divergences), None, found, None)
    assert (words in " ".join(report.problems), bool(report.problems)) == (True, bool(words))
    assert report.is_slight == is_slight
    assert "R-hat" not in " ".join(report.remedies)  # the finding has it


def test_divergences_are_a_warning_without_arviz_too(monkeypatch):
    monkeypatch.setitem(sys.modules, "arviz", None)
    diverging = torch.zeros(2, 10, dtype=torch.bool)
    samples = {"net.weight": torch.randn(2, 10, 1, 1)}
    assert judge(samples, ChainStatistics(diverging=diverging), "NUTS", None, None).status
    diverging[0, 3] = True
    with pytest.warns(pb.ConvergenceWarning, match="^1 divergent trajectory: the steps are too long"):
        status = judge(samples, ChainStatistics(diverging=diverging), "NUTS", None, None).status
    assert not status
    assert "were not computed: this needs ArviZ" in status.message


@pytest.mark.parametrize(
    ("within", "said"), [(1.1004, "1.1004, above 1.1"), (1.104, "1.104, above 1.1"), (1.25, "1.25, above 1.1")]
)
def test_an_r_hat_above_its_limit_has_digits_that_show_it(within, said):
    found = Modes(torch.tensor([1.0, within], dtype=torch.float64), 1.0, 0.0)
    assert said in found.fault
    assert f"up to {said.partition(',')[0]} (limit 1.1), between them 1.00" in found.in_brief
