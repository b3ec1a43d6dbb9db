"""Checks whether chains in C can fit a model, and counts the network's multiplications."""

import functools
from dataclasses import replace

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from ..._core.copies import copied
from ..._core.functional import ordinary_attention
from ..._core.processes import Processes
from ..._core.scope import eval_mode, seeded, warn_of_fit
from ...inference.mcmc import NotInCError
from ...inference.posterior import Status
from ...modelling.model import BayesianModel

NUM_TRIED = 32  # heuristic: number of rows on which the network is tested
TOLERANCE = 1e-4  # heuristic: two outputs count as equal if they differ by at most this multiple of the largest output
NOISE = "likelihood.rho"  # the parameter of a learned noise scale
MOST_NAMED = 3  # largest number of parameters that a message names


class UnsuitableError(ValueError):
    """Raised if chains in C cannot fit a model.

    Args:
        reason: Why they cannot.
        lacks_time: Whether more time would help.
        enough: Time limit to advise, if the user's limit was too short; otherwise 0.
        is_removable: Whether the user can change the reason, which then has advice.
    """

    def __init__(self, reason: str, *, lacks_time: bool = False, enough: int = 0, is_removable: bool = False) -> None:
        super().__init__(reason)
        self.is_removable = is_removable
        self.lacks_time, self.enough = lacks_time or enough > 0, enough

    @classmethod
    def of(cls, error: NotInCError) -> "UnsuitableError":
        """Return the error for a model that C cannot compute. The user can change the reason if it is the compiler."""
        return cls(error.reason, is_removable=error.is_of_compiler)

    def warn(self) -> None:
        """Warn before a variational fit of a reason that the user can change."""
        if self.is_removable:
            same = '`method="svi"` makes the same fit without this warning'
            warn_of_fit(f"Variational inference is used in place of chains, since {self}; {same}.", UserWarning)

    def instead(self, status: Status, num_networks: int = 1) -> Status:
        """Return the status of a variational fit, with the reason why no chains were run.

        If the time limit was too short, the message begins with this fact, of which a warning tells if the status is
        ok.
        """
        message = f"{status.message.rstrip('.')}. The fit is variational, since {self}."
        if num_networks > 1:
            more = "; a larger time limit would allow it" if self.lacks_time and not self.enough else ""
            message += f" The {num_networks} networks were not compared, and the first was fitted{more}."
        if not self.enough:
            return replace(status, message=message, verdict="" if status else status.finding)
        short = "Variational inference was used in place of chains, since the time limit was too short."
        remedy = f"A `time_limit` of {self.enough} s is probably enough for chains."
        if status:
            warn_of_fit(f"{short} {remedy}", UserWarning)
        message, verdict = f"{short} {message[0].upper()}{message[1:]}", "" if status else f"{short} {status.finding}"
        return replace(status, message=message, remedy=remedy, verdict=verdict)


def require_suitable(model: BayesianModel, x: Tensor) -> None:
    if model.device.type != "cpu":
        raise UnsuitableError(f"the model is on {model.device}, but chains need a CPU")
    if Processes.present().are_many:
        raise UnsuitableError("several processes fit together")
    learned = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    if learned == [NOISE]:
        raise UnsuitableError(
            "the noise scale has no prior (`GaussianLikelihood()` has a weak one)",
            is_removable=True,
        )
    if learned:
        names = ", ".join(learned[:MOST_NAMED]) + (", ..." if len(learned) > MOST_NAMED else "")
        reason = f"the model learns parameters that have no prior ({names}), unless you freeze them"
        raise UnsuitableError(reason, is_removable=True)
    _require_fixed(model, x[:NUM_TRIED])


def _require_fixed(model: BayesianModel, x: Tensor) -> None:
    """Raise unless the network has the same output in three runs: one in its present mode, and two in eval mode."""
    with torch.no_grad(), seeded(0, model.device):
        model = copied(model)  # a network may change its buffers
        weights = {name: model.initial_value(name) for name in model.site_names}
        first = model.output_given(weights, x.clone())
        with eval_mode(model):
            second, third = (model.output_given(weights, x.clone()) for _ in range(2))
    same = functools.partial(torch.allclose, rtol=0.0, atol=TOLERANCE * float(first.abs().amax()), equal_nan=True)
    if not same(second, third):
        raise UnsuitableError("the network is random for given weights")
    if not same(first, second):
        raise UnsuitableError(
            "the network differs in train mode, as with dropout or batch normalisation (`model.eval()` would end this)",
            is_removable=True,
        )


def num_products(model: BayesianModel, x: Tensor) -> int:
    """Return the number of multiplications in matrix products and convolutions for one row.

    The result is at least the number of weights.
    """
    values = {name: model.initial_value(name) for name in model.site_names}
    rows, counter = x[:NUM_TRIED].to(model.device), FlopCounterMode(display=False)
    with torch.no_grad(), ordinary_attention(), seeded(0, model.device), eval_mode(own := copied(model)), counter:
        own.output_given(values, rows.clone())
    num_products = counter.get_total_flops() // 2  # torch counts additions, too
    return max(sum(value.numel() for value in values.values()), num_products // len(rows))
