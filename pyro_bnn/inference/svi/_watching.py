"""What watches a fit: callbacks after each epoch, and the verdict on the fitted guide at its end."""

from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

from torch import nn

from ..._core.scope import warn_of_fit
from ...modelling.model import BayesianModel
from ..guides import has_marginals, problems_of
from ..history import History
from ..posterior import Status

Callback = Callable[[History], bool | None]
"""Function of the history, called after each epoch; a true result ends the fit."""


@runtime_checkable
class StatefulCallback(Protocol):
    """A callback that remembers something; checkpoints hold its state.

    Both methods are those of torch's optimizers and schedules. The state is plain data: numbers, texts, tensors, and
    lists and dictionaries of these.
    """

    def __call__(self, history: History) -> bool | None:
        """Called after each epoch; a true result ends the fit."""

    def state_dict(self) -> dict[str, Any]:
        """What it remembers."""

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from what :meth:`state_dict` returned."""


FEWEST_STEPS = 100
"""Heuristic: after fewer steps a guide is still near its start, and it shows what was chosen, not what was learned."""


class PosteriorWarning(UserWarning):
    """A fitted posterior collapsed to a point, or did not leave the prior."""


def judge(status: Status, guide: nn.Module, model: nn.Module, history: History, *, stacklevel: int) -> Status:
    """The status of a fit, with what is wrong with the posterior, which is also warned of.

    Args:
        status: The status as far as the history tells.
        guide: The fitted guide; one without Gaussian marginals is not judged.
        model: The model; one that is no BayesianModel is not judged.
        history: The record of the fit; a fit of fewer than 100 steps is not judged.
        stacklevel: Level of the caller to whom the warning points, counted as by `warnings.warn` in the caller of
            this function.

    Warns:
        PosteriorWarning: If something is wrong; see :class:`~pyro_bnn.inference.guides.Diagnosis`.
    """
    if len(history.elbo) < FEWEST_STEPS or not isinstance(model, BayesianModel) or not has_marginals(guide):
        return status
    problems = problems_of(guide, model)
    if not problems:
        return status
    warn_of_fit("; ".join(problems), PosteriorWarning, stacklevel=stacklevel + 1)
    return Status(False, " ".join([status.message, *(problem[0].upper() + problem[1:] for problem in problems)]))
