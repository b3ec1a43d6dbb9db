"""Judges the convergence of chains, with ArviZ."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.distributions import Bernoulli, Categorical, Distribution

from ..._core.extras import optional
from ..._core.inputs import Inputs, as_inputs, leaves, num_rows, take
from ..._core.scope import warn_of_fit
from ..._core.summary import Shown, counted
from ...modelling.model import BayesianModel
from ..joint import draw_batches
from ..posterior import ConvergenceWarning, Status
from ._convergence import FEWEST_DRAWS, Convergence, convergence, r_hats, smallest, told_beside
from ._kernel import MOST_DIVERGING, ChainStatistics, in_short

TOO_FEW = "there are too few draws to judge"
LARGEST_R_HAT = 1.01  # of converged chains; this and the next: Vehtari et al. (2021), https://arxiv.org/abs/1903.08008
SMALLEST_ESS_PER_CHAIN = 100
SLIGHT_R_HAT = 1.05  # heuristic: slightly too large up to this; all chains then vary about 5 % more than one
NUM_PREDICTION_CHECKS = 50  # heuristic: number of inputs at which the predictions of the chains are compared
MAX_QUANTITIES = 400  # heuristic: largest number of quantities to judge; ArviZ takes a millisecond for each
SMALLEST_BFMI = 0.3  # smallest that is no problem: Betancourt (2016), https://arxiv.org/abs/1604.00695
MAX_QUANTITIES_OF_MODES = 50  # heuristic: largest number of quantities if each chain is judged by itself
LARGEST_WITHIN = 1.1  # heuristic: a chain has explored its mode if R-hat between its two halves is at most this


def _of_divergences(statistics: ChainStatistics, share_tolerated: float = 0.0) -> list[str]:
    if (statistics.share_diverging or 0.0) <= share_tolerated:
        return []
    count, is_mclmc = statistics.num_diverging, statistics.energy_error is not None
    trajectories = "trajectory" if count == 1 else "trajectories"
    shorter = "lower the `energy_error` of MCLMC" if is_mclmc else "raise `target_accept` (0.95)"
    problem = f"{count} divergent {trajectories}: the steps are too long for part of the posterior"
    return [f"{problem}; warm up longer (1000 draws), {shorter}, or use smoother activations or tighter priors."]


@dataclass(frozen=True, repr=False)
class Diagnostics(Shown):
    """Diagnostics of the chains of a sampler.

    Args:
        num_chains: Number of chains, K.
        statistics: Statistics of the draws.
        bfmi: Bayesian fraction of missing information of each chain, shape (K,); None if energies are not reported.
        latents: Convergence of every element of every latent variable.
        predictions: Convergence of the predictive moments at given inputs; None without inputs.
        modes: Agreement of predictions for training rows, if the chains began at different modes. Each chain is then
            judged by itself, as in the status.
    """

    num_chains: int
    statistics: ChainStatistics
    bfmi: Tensor | None
    latents: Convergence
    predictions: Convergence | None
    modes: "Modes | None" = None

    @property
    def num_divergences(self) -> int | None:
        """Number of divergent trajectories of all chains after warm-up; None if not reported."""
        return self.statistics.num_diverging

    def __str__(self) -> str:
        divergences = "not reported" if self.num_divergences is None else self.num_divergences
        bfmi = "not reported" if self.bfmi is None else f"{smallest(self.bfmi):.2f}"
        lines = [
            f"chains       {self.num_chains}, divergences {divergences}, smallest BFMI {bfmi}",
            f"latents      {self.latents}",
            "             (hidden units may swap places, so latents need not agree)",
        ]
        if self.predictions is not None:
            lines.append(f"predictions  {self.predictions}")
        if self.modes is not None:
            lines.append(f"modes        {self.modes.in_brief}")
        return "\n".join(lines)

    @property
    def judged(self) -> tuple[str, Convergence]:
        """The name of the quantities that are judged, and their convergence.

        These are predictions, or latent variables if predictions are constant or missing.
        """
        if self.predictions is None or bool(self.predictions.r_hat.isnan().all()):
            return "latent variables", self.latents
        return "predictions", self.predictions

    @property
    def problems(self) -> list[str]:
        """The problems of the chains, each with a remedy."""
        if self.modes is not None:
            return _problems_at(self.modes, self.statistics)
        return [*self._faults, *self._shortness]

    @property
    def remedies(self) -> list[str]:
        """The problems, but without R-hats and effective sample sizes, which :meth:`__str__` shows."""
        return [*self._faults, *(problem.partition(": ")[2] for problem in self._shortness[:1])]

    @property
    def is_slight(self) -> bool:
        """Whether all problems are R-hats or effective sample sizes that barely miss their limits.

        That is an R-hat of at most 1.05, or an effective sample size of at least half its limit.
        """
        judged, enough = self.judged[1], SMALLEST_ESS_PER_CHAIN * self.num_chains / 2
        is_near = judged.worst_r_hat <= SLIGHT_R_HAT and judged.worst_ess >= enough
        return is_near and bool(self._shortness) and not self._faults

    @property
    def _faults(self) -> list[str]:
        found = _of_divergences(self.statistics)
        if self.bfmi is not None and (bfmi := smallest(self.bfmi)) < SMALLEST_BFMI:
            found.append(f"the smallest BFMI is {bfmi:.2f}: the tails are explored slowly; warm up longer.")
        what, judged = self.judged
        if not judged.is_known:
            found.append(
                f"{TOO_FEW}: R-hat needs {FEWEST_DRAWS} in each of several chains, or "
                f"{2 * FEWEST_DRAWS} in a single one; sample longer."
            )
        elif bool(judged.r_hat.isnan().all()):
            found.append(
                f"all draws have the same {what}: the chains did not move; warm up longer, or start them elsewhere "
                "with `init`."
            )
        return found

    @property
    def _shortness(self) -> list[str]:
        found, (what, judged) = [], self.judged
        if judged.worst_r_hat > LARGEST_R_HAT:
            parts = "chains" if self.num_chains > 1 else "halves of the chain"
            told = f"the largest R-hat of the {what} is {told_beside(judged.worst_r_hat, LARGEST_R_HAT, 3)},"
            found.append(
                f"{told} slightly above {LARGEST_R_HAT}: sample longer for exact figures."
                if judged.worst_r_hat <= SLIGHT_R_HAT
                else f"{told} above {LARGEST_R_HAT}: the {parts} disagree; warm up and sample longer, or check whether "
                "they are in different modes."
            )
        if judged.worst_ess < SMALLEST_ESS_PER_CHAIN * self.num_chains:
            found.append(
                f"the smallest effective sample size of the {what} is {judged.worst_ess:.0f}, below "
                f"{SMALLEST_ESS_PER_CHAIN} a chain: sample longer."
            )
        return found


def predictive_moments(observation: Distribution) -> Tensor:
    """Return the class probabilities of a distribution, or else its mean and standard deviation."""
    if isinstance(observation, (Categorical, Bernoulli)):
        return observation.probs.flatten(1)
    return torch.cat([observation.mean.flatten(1), observation.stddev.flatten(1)], 1)


@dataclass(frozen=True, repr=False)
class Modes(Shown):
    """Agreement of scalar quantities, such as predictions, within and between chains.

    Args:
        within: For each chain, the largest R-hat of a quantity between the chain's two halves, shape (K,); infinite for
            a chain that did not move.
        between: Largest R-hat of a quantity between the chains.
        share: Share of the quantities' variance that lies between the means of the chains, from 0 to 1.
    """

    within: Tensor
    between: float
    share: float

    @property
    def num_unexplored(self) -> int:
        """Number of chains that have not explored their modes."""
        return int((self.within > LARGEST_WITHIN).sum())

    @property
    def unexplored(self) -> str:
        """A clause that says how many chains are too short to explore their modes. It does not mention R-hat."""
        verb = (
            "is too short to explore its mode" if self.num_unexplored == 1 else "are too short to explore their modes"
        )
        return f"{self.num_unexplored} of {len(self.within)} chains {verb}"

    @property
    def problems(self) -> list[str]:
        """The problems found, each with a remedy."""
        return [f"{self.fault}: warm up longer."] if self.fault else []

    @property
    def fault(self) -> str:
        """A clause that says how many chains have not explored their modes; empty if all have."""
        bad = self.num_unexplored
        worst = self._stuck or f"R-hat of a chain's halves up to {self._largest_within}, above {LARGEST_WITHIN}"
        have = "has not explored its mode" if bad == 1 else "have not explored their modes"
        return f"{bad} of {len(self.within)} chains {have} ({worst})" if bad else ""

    @property
    def _largest_within(self) -> str:
        return told_beside(float(self.within.max()), LARGEST_WITHIN)

    @property
    def _stuck(self) -> str:
        """A clause about chains that did not move; empty if all moved."""
        count = int(self.within.isinf().sum())
        return f"R-hat is infinite, because {counted(count, 'chain')} did not move" if count else ""

    @property
    def _r_hats(self) -> str:
        if self._stuck:
            return self._stuck
        between = told_beside(self.between, LARGEST_WITHIN)
        return f"R-hat within chains up to {self._largest_within} (limit {LARGEST_WITHIN}), between them {between}"

    @property
    def in_brief(self) -> str:
        """A clause with the verdict on the chains, and R-hat."""
        verdict = self.unexplored if self.num_unexplored else f"each of {len(self.within)} chains has explored its mode"
        return f"{verdict}; {self._r_hats}"

    def __str__(self) -> str:
        count, places = len(self.within), "chains"
        if self.num_unexplored:
            number = self.unexplored
        elif self.between > LARGEST_WITHIN:
            number, places = f"{count} modes, which count equally", "modes"
        else:
            number = f"{count} chains whose predictions agree"
        return (
            f"{number}; {self._r_hats}; {100 * self.share:.0f} % of the variance of predictions lies between {places}"
        )


def _problems_at(modes: Modes, statistics: ChainStatistics) -> list[str]:
    return [*_of_divergences(statistics, MOST_DIVERGING), *modes.problems]


def modes(values: Tensor) -> Modes:
    """Find out from M quantities, shape (K, S, M) with S at least 8, whether the K chains have explored their modes."""
    values = values.detach().double().cpu()
    r_hat = r_hats(values.transpose(0, 1).flatten(1)[None]).unflatten(0, (len(values), -1))  # each chain alone, (K, M)
    within = r_hat.nan_to_num(-torch.inf, posinf=torch.inf).amax(-1)
    within = torch.where(r_hat.isnan().all(-1), torch.inf, within)
    means, total = values.mean(1), values.flatten(0, 1).var(0, correction=0)
    share = means.var(0, correction=0).sum() / total.sum().clamp_min(torch.finfo(torch.float64).tiny)
    return Modes(within, -smallest(-r_hats(values)), float(share))


def modes_of_predictions(model: BayesianModel, samples: Mapping[str, Tensor], x: Inputs) -> Modes | None:
    """Find out from predictions at up to 50 rows of x whether chains have explored their modes; None if S < 8."""
    if next(iter(samples.values())).shape[1] < 2 * FEWEST_DRAWS:
        return None
    return modes(_predicted(model, samples, _few_rows(model, x), MAX_QUANTITIES_OF_MODES))


def _few_rows(model: BayesianModel, x: Inputs) -> Inputs:
    x = as_inputs("x", x, model.like)
    rows = num_rows(x)
    chosen = torch.linspace(0, rows - 1, min(rows, NUM_PREDICTION_CHECKS)).long()
    return take(x, chosen.to(leaves(x)[0].device))


def diagnose(
    samples: Mapping[str, Tensor],
    statistics: ChainStatistics,
    model: BayesianModel | None,
    x: Inputs | None,
    *,
    max_quantities: int | None = None,
    modes: Modes | None = None,
) -> Diagnostics:
    """Return diagnostics of at most `max_quantities` latent numbers, and of at most as many predictive moments."""
    if (model is None) != (x is None):
        raise ValueError("`model` and `x` go together: predictions need both.")
    arviz = optional("arviz", "ArviZ", "mcmc")
    lead, predictions = next(iter(samples.values())).shape[:2], None
    energy = statistics.energy
    if model is not None and x is not None:
        predictions = convergence(_predicted(model, samples, x, max_quantities))
    bfmi = None
    if energy is not None:
        with np.errstate(divide="ignore", invalid="ignore"):  # NaN for a chain that never moved
            bfmi = torch.as_tensor(arviz.bfmi(energy.double().cpu().numpy()))
    return Diagnostics(
        num_chains=lead[0],
        statistics=statistics,
        bfmi=bfmi,
        latents=convergence(_spaced([value.reshape(*lead, -1) for value in samples.values()], max_quantities)),
        predictions=predictions,
        modes=modes,
    )


def _predicted(model: BayesianModel, samples: Mapping[str, Tensor], x: Inputs, at_most: int | None) -> Tensor:
    """Return the predictive moments, shape (K, S, M), but at most `at_most` of them, evenly spaced."""
    moments = [predictive_moments(observation) for observation in draw_batches(model, samples, x)]
    return _spaced([torch.cat(moments).unflatten(0, next(iter(samples.values())).shape[:2])], at_most)


def _spaced(parts: Sequence[Tensor], at_most: int | None) -> Tensor:
    """Join the last axes of tensors, but keep at most `at_most` of the columns, evenly spaced, to save memory."""
    count, begin, kept = sum(part.shape[-1] for part in parts), 0, []
    if at_most is None or count <= at_most:
        return torch.cat([*parts], -1)
    columns = torch.linspace(0, count - 1, at_most).long().clamp_max(count - 1).to(parts[0].device)
    for part in parts:
        own = columns[(columns >= begin) & (columns < begin + part.shape[-1])] - begin
        kept.append(part[..., own])
        begin += part.shape[-1]
    return torch.cat(kept, -1)


class Judgement(NamedTuple):
    """The status of chains, and the agreement of their predictions if each chain was judged by itself."""

    status: Status
    modes: Modes | None = None


def judge(
    samples: Mapping[str, Tensor],
    statistics: ChainStatistics,
    sampler: str,
    model: BayesianModel | None,
    x: Inputs | None,
    *,
    at_modes: bool = False,
) -> Judgement:
    """Judge chains of the algorithm `sampler`, and warn of problems.

    With a model and inputs, predictions at up to 50 of the inputs are judged, else the latent variables. With
    `at_modes`, each chain began at its own mode and is judged by itself, because chains in different modes need not
    agree. At most a share `MOST_DIVERGING` of all draws may then have divergent steps.
    """
    done = in_short(samples, statistics, sampler)
    try:
        if at_modes and model is not None and x is not None and (found := modes_of_predictions(model, samples, x)):
            problems = _problems_at(found, statistics)
            said = [*problems[:-1], "warm up longer."] if found.fault else problems
            return Judgement(_judged(f"{found}; {done}", problems, said=said), found)
        if x is not None and model is not None:
            x = _few_rows(model, x)
        report = diagnose(samples, statistics, model, x, max_quantities=MAX_QUANTITIES)
    except ImportError as error:
        finding = f"{done}; R-hat and effective sample sizes were not computed: {error}".rstrip(".")
        return Judgement(_judged(finding, _of_divergences(statistics)))
    what, judged = report.judged
    verdict, worst = "not converged" if report.problems else "converged", judged.worst_r_hat
    r_hat = f"R-hat {told_beside(worst, LARGEST_R_HAT, 3)} (limit {LARGEST_R_HAT})"
    told = str(judged).replace(f"R-hat {worst:.3f}", r_hat)
    finding = f"{verdict if judged.is_known else 'not judged'}; {what}: {told}; {done}"
    return Judgement(_judged(finding, report.problems, said=report.remedies, is_slight=report.is_slight))


def _judged(
    finding: str, problems: Sequence[str], *, said: Sequence[str] | None = None, is_slight: bool = False
) -> Status:
    """Return the status, and warn of problems. Its message has `finding`, and then `said` or else the `problems`."""
    told = problems if said is None else said
    sentences, rest = ([clause[0].upper() + clause[1:] for clause in clauses] for clauses in (problems, told))
    more = [f"Also, {problem.partition(': ')[0]}." for problem in problems[1:]]
    verdict = " ".join([*sentences[:1], *more])
    ok = None if len(problems) == 1 and problems[0].startswith(TOO_FEW) else not problems
    status = Status(ok, " ".join([f"{finding}.", *rest]), verdict=verdict, is_slight=is_slight)
    if problems:
        warn_of_fit(status.warning(), ConvergenceWarning)
    return status
