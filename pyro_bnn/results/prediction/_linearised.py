"""Outputs of a network made linear in its weights."""

from collections.abc import Collection

import torch
from torch import Tensor

from ..._core.functional import ordinary_attention
from ..._core.inputs import Inputs
from ..._core.scope import filtered_warnings
from ...inference.posterior import Draw
from ...modelling.model import BayesianModel


def linearised_output(model: BayesianModel, center: Draw, draw: Draw, x: Inputs, constant: Collection[str]) -> Tensor:
    r"""The output at drawn weights of the network that is linear in its weights around a point.

    .. math:: f(x, w^*) + J(x) (w - w^*), \qquad J(x) = \partial f(x, w) / \partial w \text{ at } w^*.

    The product with the Jacobian is one pass with forward derivatives; the Jacobian itself is never made. The sites in
    `constant` are the same in the point w*, `center`, and the draw w.
    """
    names = [name for name in model.site_names if name not in constant]
    point = tuple(center[name] for name in names)
    moves = tuple(draw[name] - center[name] for name in names)

    def output(*weights: Tensor) -> Tensor:
        return model.output_given({**center, **dict(zip(names, weights, strict=True))}, x)

    try:
        with filtered_warnings("ignore", "`torch.jit.script` is deprecated"), ordinary_attention():  # torch's own use
            at_point, change, *_ = torch.func.jvp(output, point, moves)
    except ValueError as error:
        if not isinstance(error.__cause__, NotImplementedError):
            raise
        raise ValueError(
            "a linearised prediction needs forward derivatives, but an operation of the network has none "
            f"({str(error.__cause__).splitlines()[0]}); pass `linearised=False`."
        ) from error
    result: Tensor = at_point + change
    return result
