"""The posterior that consists of chains of draws."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from pyro.infer import MCMC
from torch import Tensor

from ..._core import checks as _checks
from ..._core.inputs import Inputs
from ..._core.records import check_finite, check_state, check_tensor, plain, record
from ..._core.scope import Stream
from ..._core.summary import Summary
from ...modelling.model import BayesianModel
from ..posterior import Destination, Draw, Posterior, Status, spaced
from ._convergence import FEWEST_DRAWS
from ._diagnostics import Diagnostics, Modes, diagnose, judge
from ._kernel import ChainStatistics

FLOATS = torch.float32, torch.float64
OTHERS = {"diverging": (torch.bool,), "num_steps": (torch.int32, torch.int64)}  # dtypes that are not floats


@dataclass(frozen=True)
class ChainsRecord:
    samples: dict[str, Tensor]
    statistics: ChainStatistics
    status: Status
    sampler: str
    path: str
    modes: dict[str, Tensor] | None  # tensors may hold an infinite R-hat, but a number in a file must be finite


class MCMCPosterior(Posterior):
    """The draws of K Markov chains, S draws each.

    Args:
        chains: The draws of each chain in constrained space, ``{site: shape (K, S, *event)}``.
        statistics: Statistics of each draw, from the sampler.
        status: Result of the diagnostics.
        sampler: Name of the algorithm.
        path: How the draws were computed, such as ``"C"`` or ``"pyro"``. If torch computed them, the text
            begins with ``"replayed"`` or ``"eager"``, and says why no faster way was possible.
        modes: Agreement of predictions for training rows, within and between chains, if the chains began at different
            modes.

    Raises:
        ValueError: If an argument has the wrong type, or if sites have different numbers of draws.
    """

    def __init__(
        self,
        chains: dict[str, Tensor],
        statistics: ChainStatistics,
        status: Status,
        *,
        sampler: str,
        path: str = "",
        modes: Modes | None = None,
    ) -> None:
        _check_chains(chains)
        _checks.kind("statistics", statistics, ChainStatistics, "a ChainStatistics")
        _checks.kind("status", status, Status, "a Status")
        self.chains, self.statistics, self.status, self.sampler = chains, statistics, status, sampler
        self.path, self.modes, self.seconds = path, modes, statistics.seconds

    @classmethod
    def from_pyro(
        cls, mcmc: MCMC, *, model: BayesianModel | None = None, x: Inputs | None = None, seconds: float | None = None
    ) -> "MCMCPosterior":
        """Make a posterior from the draws of Pyro's `MCMC`, for `predict`, `compare`, diagnostics and files.

        Its `statistics` contain only `diverging` and `seconds`.

        Args:
            mcmc: A `pyro.infer.MCMC` after its run. The draws are not copied.
            model: The model that was sampled. The status judges its predictions. Without a model, the status judges the
                latent variables, which rarely converge if they are weights (see :meth:`diagnose`).
            x: Inputs of the model, shape (N, ...), of which the status uses up to 50.
            seconds: Wall time of the run, if it was measured.

        Raises:
            ValueError: If `mcmc` was not run, if a chain has fewer than four draws, if a site is discrete, if only one
                of `model` and `x` is given, or if the draws come from another model.

        Warns:
            ConvergenceWarning: As in :func:`~pyro_bnn.fit_mcmc`.
        """
        samples, sampler = _read_samples(mcmc), f"Pyro's {type(mcmc.kernel).__name__}"
        statistics = _read_statistics(mcmc, seconds)
        status = judge(samples, statistics, sampler, model, x).status
        return cls(samples, statistics, status, sampler=sampler, path="pyro")

    @property
    def _lead(self) -> torch.Size:
        return next(iter(self.chains.values())).shape[:2]

    def _summary(self) -> Summary:
        summary = super()._summary()
        how = f"draws computed: {'in C' if self.path == 'C' else self.path}"
        return replace(summary, notes=[*summary.notes, how]) if self.path else summary

    @property
    def method(self) -> str:
        return self.sampler

    @property
    def shapes(self) -> dict[str, torch.Size]:
        return {name: value.shape[2:] for name, value in self.chains.items()}

    @property
    def num_chains(self) -> int:
        """Number of chains, K."""
        return self._lead[0]

    @property
    def num_stored(self) -> int:
        return self._lead.numel()

    def draws(self, num_samples: int, *args: object) -> Iterator[Draw]:
        """Yield evenly spaced draws, one chain after the other; see :meth:`Posterior.draws`.

        Raises:
            ValueError: If `num_samples` exceeds the number of stored draws.
        """
        flat = {name: value.flatten(0, 1) for name, value in self.chains.items()}
        yield from spaced(flat, num_samples, remedy="sample longer")

    def diagnose(self, model: BayesianModel | None = None, x: Inputs | None = None) -> Diagnostics:
        """Return R-hat and effective sample sizes of latent variables and, given a model and inputs, of predictions.

        Judge chains by predictions, not by weights, which change if hidden units are permuted or their signs flipped.

        Args:
            model: The model that was sampled.
            x: Inputs at which predictions are compared, shape (N, ...); a few dozen are enough.

        Raises:
            ImportError: If ArviZ is not installed.
        """
        if model is not None:
            _checks.kind("model", model, BayesianModel, "the BayesianModel that was sampled")
        return diagnose(self.chains, self.statistics, model, x, modes=self.modes)

    def _chains(
        self, num_samples: int | None, arguments: tuple[Inputs, ...], stream: Stream
    ) -> tuple[Mapping[str, Tensor], Mapping[str, Tensor]]:
        """Return all draws with their statistics if `num_samples` is None, else `num_samples` draws alone."""
        if num_samples is not None:
            return super()._chains(num_samples, arguments, stream)
        statistics = self.statistics
        step_size = statistics.step_size
        named = {
            "diverging": statistics.diverging,
            "energy": statistics.energy,
            "lp": statistics.log_density,
            "acceptance_rate": statistics.accept,
            "n_steps": statistics.num_steps,
            "energy_error": statistics.energy_error,
            "step_size": None if step_size is None else step_size[:, None].expand(self._lead),
        }
        return self.chains, {name: value for name, value in named.items() if value is not None}

    def to_record(self) -> dict[str, Any]:
        values = {} if self.modes is None else vars(self.modes)
        modes = {name: torch.as_tensor(value, dtype=torch.float64) for name, value in values.items()} or None
        return plain(ChainsRecord(self.chains, self.statistics, self.status, self.sampler, self.path, modes))

    @classmethod
    def from_record(cls, values: Mapping[str, Any], destination: Destination) -> "MCMCPosterior":
        saved = record(ChainsRecord, values, "posterior")
        sites = destination.sites
        lead = destination.check_samples(saved.samples)
        size = None if sites is None else sum(site.unconstrained_start.numel() for site in sites)
        check_statistics(saved.statistics, lead, size)
        samples = {name: value.to(destination.device) for name, value in saved.samples.items()}
        modes = None if saved.modes is None else _restored_modes(saved.modes, lead[0])
        return cls(samples, saved.statistics, saved.status, sampler=saved.sampler, path=saved.path, modes=modes)


def _restored_modes(saved: Mapping[str, Tensor], num_chains: int) -> Modes:
    one = torch.zeros((), dtype=torch.float64)
    check_state("the modes", saved, {"within": one.expand(num_chains), "between": one, "share": one})
    return Modes(saved["within"], float(saved["between"]), float(saved["share"]))


def _check_chains(chains: Mapping[str, Tensor]) -> None:
    _checks.kind("chains", chains, Mapping, "a dict of draws, {site: shape (K, S, *event)}")
    if not chains:
        raise ValueError("`chains` must hold at least one site, got none; pass {site: shape (K, S, *event)}.")
    leads = {name: _checks.shape(_checks.tensor(f"chains[{name!r}]", draws))[:2] for name, draws in chains.items()}
    if len(set(leads.values())) > 1 or len(next(iter(leads.values()))) < 2:
        raise ValueError(f"`chains` must have the same leading axes (K, S) at every site, got {leads}.")


def _read_samples(mcmc: MCMC) -> dict[str, Tensor]:
    _checks.kind("mcmc", mcmc, MCMC, "a pyro.infer.MCMC")
    samples = mcmc.get_samples(group_by_chain=True)  # None before the run
    if not samples:
        raise ValueError("`mcmc` holds no draws; call `mcmc.run(x, y)` first, on a model with latent variables.")
    for name, values in samples.items():
        if not values.is_floating_point():
            raise ValueError(
                f"`{name}` is discrete ({values.dtype}), but diagnostics and predictions of chains need continuous "
                "latent variables. Sum this variable out of the model, as in a mixture likelihood."
            )
        if values.shape[1] < FEWEST_DRAWS:
            raise ValueError(
                f"`mcmc` holds {values.shape[1]} draws of each chain, but R-hat needs at least {FEWEST_DRAWS}; set its "
                "`num_samples`."
            )
    return {name: values.detach() for name, values in samples.items()}


def _read_statistics(mcmc: MCMC, seconds: float | None) -> ChainStatistics:
    like = next(iter(mcmc.get_samples(group_by_chain=True).values()))
    divergences = mcmc.diagnostics().get("divergences")
    diverging = None
    if divergences is not None:
        diverging = torch.zeros(like.shape[:2], dtype=torch.bool, device=like.device)
        for chain in range(len(diverging)):
            diverging[chain, divergences[f"chain {chain}"]] = True
    # Left out: Pyro's "acceptance rate" of NUTS is the fraction of draws that moved, and its step size is the last one.
    return ChainStatistics(diverging=diverging, seconds=seconds)


def check_statistics(statistics: ChainStatistics, lead: torch.Size, num_dimensions: int | None) -> None:
    """Raise if a statistic has a wrong dtype, shape or value; `lead` is (K, S)."""
    mass = statistics.inverse_mass
    size = num_dimensions if num_dimensions is not None else 0 if mass is None or not mass.dim() else mass.shape[-1]
    shapes = {"step_size": (lead[0],), "inverse_mass": (lead[0], size)}
    for name, value in vars(statistics).items():
        if not isinstance(value, Tensor):
            continue
        kinds = OTHERS.get(name, FLOATS)
        if value.dtype not in kinds:
            raise ValueError(f"`{name}` of the chains must be {' or '.join(map(str, kinds))}, got {value.dtype}.")
        check_tensor(f"`{name}` of the chains", value, shapes.get(name, lead), value.dtype)
        check_finite(f"`{name}` of the chains", value)
        if name in ("step_size", "inverse_mass") and not bool((value > 0).all()):
            raise ValueError(f"`{name}` of the chains must be above 0, got {float(value.min()):.4g}.")
