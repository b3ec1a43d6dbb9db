"""Any guide as a posterior."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from pyro import poutine
from pyro.infer.autoguide import AutoGuide
from pyro.poutine.runtime import _PYRO_STACK

from .._checks import at_least, described, kind
from .._scope import is_auxiliary, own_parameters, short_errors
from ..history import History
from ..model import BayesianModel
from ..posterior import Draw, Posterior, Status
from ._flat import FlatGuide


class GuidePosterior(Posterior):
    """Draws from a guide: one of this package, one of Pyro's, or a function.

    A guide that is a module uses its own parameters, even if Pyro's global store holds others under the same names. So
    after ``pyro.get_param_store().load(...)`` call such a guide once, which copies the parameters from the store.

    Args:
        guide: Function of the model's arguments that samples every latent variable. A fit changes it in place.
        status: How its fit ended; by default the status of a guide as it was given.
        history: Record of its fit; empty by default.
    """

    def __init__(
        self, guide: Callable[..., object], status: Status | None = None, history: History | None = None
    ) -> None:
        if isinstance(guide, (type, BayesianModel, Posterior)) or not callable(guide):
            got = "a model, which draws from its prior" if isinstance(guide, BayesianModel) else described(guide)
            raise ValueError(
                f"a posterior must have a guide, a module or function that samples, got {got}; make one by `fit_svi`."
            )
        if status is not None:
            kind("status", status, Status, "a Status")
        if history is not None:
            kind("history", history, History, "a History")
        self.guide = guide
        self.status = status if status is not None else Status(True, "a guide as it was given.")
        self.history = history if history is not None else History()

    @property
    def seconds(self) -> float | None:
        """Wall time of all epochs of the fit; None without a fit."""
        return sum(record.seconds for record in self.history.epochs) if self.history.epochs else None

    @torch.no_grad()
    def draws(self, num_samples: int, *args: object) -> Iterator[Draw]:
        """Draws one at a time; see :meth:`Posterior.draws`."""
        num_samples = at_least("num_samples", num_samples, 1)
        guide = self.guide
        is_plain = isinstance(guide, FlatGuide) and guide.changes is None and not _PYRO_STACK
        if isinstance(guide, FlatGuide) and is_plain and not any(site.plates for site in guide.sites):
            yield from guide.draws(num_samples)
            return
        for _ in range(num_samples):
            with short_errors(), own_parameters(self.guide), poutine.block():
                trace = poutine.trace(self.guide).get_trace(*args)
            nodes: dict[str, Any] = dict(trace.iter_stochastic_nodes())
            yield {name: node["value"] for name, node in nodes.items() if not is_auxiliary(node)}

    def median(self) -> Draw:
        """The median of every latent variable, ``{site: shape (*event)}``: for a Gaussian guide the mean weights.

        Raises:
            ValueError: If the guide has no closed-form median.
        """
        if not isinstance(self.guide, (FlatGuide, AutoGuide)):
            raise ValueError(f"a guide of type {type(self.guide).__name__} has no `median()`; use `sample` instead.")
        with own_parameters(self.guide), poutine.block():  # the median of AutoDelta calls the guide
            return {name: value.detach() for name, value in self.guide.median().items()}
