"""Chains of draws as a posterior."""

import zipfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..joint import draw_batches
from ..model import BayesianModel
from ..posterior import Draw, Posterior, Status
from ._diagnostics import Diagnostics, diagnose, require_arviz


@dataclass(frozen=True)
class ChainStatistics:
    """What the sampler did at each draw, shapes (K, S) unless said otherwise.

    Args:
        log_density: Log joint density in unconstrained space, in nats.
        energy: Hamiltonian of the draw, in nats.
        accept: Mean acceptance probability along the trajectory.
        diverging: Whether the trajectory left the region where its steps were small enough.
        num_steps: Leapfrog steps.
        step_size: After warm-up, shape (K,).
        inverse_mass: Diagonal of the inverse mass matrix after warm-up, shape (K, P).
        seconds: Wall time of warm-up and sampling together.
    """

    log_density: Tensor
    energy: Tensor
    accept: Tensor
    diverging: Tensor
    num_steps: Tensor
    step_size: Tensor
    inverse_mass: Tensor
    seconds: float


class MCMCPosterior(Posterior):
    """Draws of Markov chains, K chains of S draws each.

    Args:
        samples: ``{site: shape (K, S, *event)}``, constrained.
        statistics: What the sampler did.
        status: What the diagnostics say.
        sampler: Name of the algorithm.
    """

    def __init__(
        self, samples: dict[str, Tensor], statistics: ChainStatistics, status: Status, *, sampler: str
    ) -> None:
        self.samples, self.statistics, self.status, self.sampler = samples, statistics, status, sampler

    @property
    def num_chains(self) -> int:
        """K."""
        return len(self.statistics.energy)

    @property
    def num_stored(self) -> int:
        """All draws of all chains, K times S."""
        return self.statistics.energy.numel()

    @property
    def seconds(self) -> float:
        """Wall time of warm-up and sampling together."""
        return self.statistics.seconds

    def draws(self, num_samples: int, *args: object) -> Iterator[Draw]:
        """Evenly spaced draws of the chains, one after the other, each at most once; see :meth:`Posterior.draws`.

        Raises:
            ValueError: If there are not so many.
        """
        if num_samples > self.num_stored:
            raise ValueError(
                f"`num_samples` is {num_samples} but the chains hold {self.num_stored} draws; ask for at most that, or "
                "sample longer."
            )
        flat = {name: value.flatten(0, 1) for name, value in self.samples.items()}
        for index in range(num_samples):
            row = (2 * index + 1) * self.num_stored // (2 * num_samples)
            yield {name: value[row] for name, value in flat.items()}

    def diagnostics(self, model: BayesianModel | None = None, x: Tensor | None = None) -> Diagnostics:
        """R-hat and effective sample sizes, of the latent variables and, given model and inputs, of predictions.

        Weights are identified only up to permutations and signs of hidden units, so chains may sit in mirrored modes:
        their weights then never agree, and their predictions do. The predictions' numbers are those to look at.

        Args:
            model: The model that was sampled.
            x: Inputs at which predictions are compared, shape (N, ...); a few dozen are enough.

        Raises:
            ImportError: If ArviZ is not installed.
        """
        return diagnose(self.samples, self.statistics, model, x)

    def to_arviz(
        self, *, model: BayesianModel | None = None, x: Tensor | None = None, y: Tensor | None = None, seed: int = 0
    ) -> Any:
        """The chains as ArviZ's `InferenceData`: posterior and sample statistics, and with a model more.

        Args:
            model: The model that was sampled; with x it gives the group ``posterior_predictive``.
            x: Inputs, shape (N, ...).
            y: Targets; with them the groups ``log_likelihood`` and ``observed_data``.
            seed: Of the predictive draws.

        Raises:
            ImportError: If ArviZ is not installed.
            ValueError: If x or y is given without a model.
        """
        arviz = require_arviz()
        if (model is None) != (x is None) or (y is not None and x is None):
            raise ValueError("`model` and `x` go together, and `y` needs both.")
        statistics = self.statistics
        groups: dict[str, Any] = {
            "posterior": {name: value.cpu().numpy() for name, value in self.samples.items()},
            "sample_stats": {
                "diverging": statistics.diverging.cpu().numpy(),
                "energy": statistics.energy.cpu().numpy(),
                "lp": statistics.log_density.cpu().numpy(),
                "acceptance_rate": statistics.accept.cpu().numpy(),
                "n_steps": statistics.num_steps.cpu().numpy(),
                "step_size": statistics.step_size[:, None].expand_as(statistics.energy).cpu().numpy(),
            },
        }
        if model is not None and x is not None:
            groups |= self._predictive_groups(model, x, y, seed)
        return arviz.from_dict(**groups)

    def _predictive_groups(self, model: BayesianModel, x: Tensor, y: Tensor | None, seed: int) -> dict[str, Any]:
        if y is not None:
            model.check_targets(x, y)
            y = model.likelihood.as_targets(y, model.dtype)
        draws, log_likelihood = [], []
        for observation in draw_batches(model, self.samples, x, seed=seed):
            draws.append(observation.sample())
            if y is not None:
                log_prob = observation.log_prob(y)
                log_likelihood.append(log_prob.reshape(*log_prob.shape[:2], -1).sum(-1))  # (B, N)
        lead = self.statistics.energy.shape
        groups = {"posterior_predictive": {"obs": torch.cat(draws).unflatten(0, lead).cpu().numpy()}}
        if y is not None:
            groups["log_likelihood"] = {"obs": torch.cat(log_likelihood).unflatten(0, lead).cpu().numpy()}
            groups["observed_data"] = {"obs": y.cpu().numpy()}
        return groups

    def save(self, path: str | Path) -> None:
        """Write the chains and their statistics to one file.

        Args:
            path: The file.
        """
        state = {
            "samples": self.samples,
            "statistics": asdict(self.statistics),
            "status": asdict(self.status),
            "sampler": self.sampler,
        }
        torch.save(state, path)

    @classmethod
    def load(cls, path: str | Path) -> "MCMCPosterior":
        """Read what :meth:`save` wrote, onto the CPU. Only tensors and numbers are read; the file cannot run code.

        Args:
            path: The file.

        Raises:
            FileNotFoundError: If there is no such file.
            ValueError: If it is of another kind.
        """
        if not Path(path).is_file():
            raise FileNotFoundError(f"there is no file {path}.")
        state = torch.load(path, map_location="cpu", weights_only=True) if zipfile.is_zipfile(path) else {}
        if set(state) != {"samples", "statistics", "status", "sampler"}:
            raise ValueError(f"{path} is no file that `MCMCPosterior.save` wrote.")
        statistics = ChainStatistics(**state["statistics"])
        return cls(state["samples"], statistics, Status(**state["status"]), sampler=state["sampler"])
