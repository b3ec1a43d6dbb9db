"""Checks whether chains in C can fit a model. Operations that C does not support are found only later."""

from dataclasses import replace

import torch
from torch import Tensor

from ..._core.copies import copied
from ..._core.processes import Processes
from ..._core.scope import eval_mode, seeded
from ...inference.posterior import Status
from ...modelling.model import BayesianModel

NUM_TRIED = 32
"""Number of rows with which the network is tested; heuristic."""

TOLERANCE = 1e-4
"""Largest difference of two outputs by rounding, relative to the largest output; heuristic."""

MOST_NAMED = 3
"""Largest number of parameters named in a message."""


class UnsuitableError(ValueError):
    """Chains in C cannot fit this model in this time; the message says why."""

    def instead(self, status: Status) -> Status:
        """The status of a variational fit, with the reason why there are no chains."""
        return replace(status, message=f"variational inference, since {self}: {status.message}")


def require_suitable(model: BayesianModel, x: Tensor) -> None:
    """Raise an :class:`UnsuitableError` unless all learned parameters have a prior and the density is fixed.

    Chains use the density of the network in eval mode, and do not change parameters without a prior.
    """
    if model.device.type != "cpu":
        raise UnsuitableError(f"the model is on {model.device}, but chains need a CPU")
    if Processes.present().are_many:
        raise UnsuitableError("several processes fit together")
    learned = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    if learned:
        names = ", ".join(learned[:MOST_NAMED]) + (", ..." if len(learned) > MOST_NAMED else "")
        raise UnsuitableError(f"the model learns parameters that have no prior ({names})")
    if not _is_fixed(model, x[:NUM_TRIED]):
        raise UnsuitableError(
            "the network is random for given weights, or differs in training, as with dropout or batch normalisation"
        )


def _is_fixed(model: BayesianModel, x: Tensor) -> bool:
    """Whether the network gives the same output in its present mode and in each of two calls in eval mode."""
    with torch.no_grad(), seeded(0, model.device):
        model = copied(model)  # a network may change its buffers
        weights = {name: model.initial_value(name) for name in model.site_names}
        first = model.output_given(weights, x.clone())
        with eval_mode(model):
            others = [model.output_given(weights, x.clone()) for _ in range(2)]
    atol = TOLERANCE * float(first.abs().amax())
    return all(torch.allclose(first, other, rtol=0.0, atol=atol, equal_nan=True) for other in others)
