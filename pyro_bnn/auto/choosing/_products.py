"""The size of a network, on which the time of its gradients depends."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from ..._core.copies import copied
from ..._core.functional import ordinary_attention
from ..._core.scope import eval_mode, seeded
from ...modelling.model import BayesianModel
from ._unsuitable import NUM_TRIED


def num_products(model: BayesianModel, x: Tensor) -> int:
    """Multiplications in the products of matrices and convolutions for one row; at least the number of weights."""
    values = {name: model.initial_value(name) for name in model.site_names}
    rows, counter = x[:NUM_TRIED].to(model.device), _ProductCounter()
    with torch.no_grad(), ordinary_attention(), seeded(0, model.device), eval_mode(own := copied(model)), counter:
        own.output_given(values, rows.clone())
    return max(sum(value.numel() for value in values.values()), counter.num_products // len(rows))


class _ProductCounter(TorchDispatchMode):
    """Counts multiplications, by the formulas of torch."""

    def __init__(self) -> None:
        super().__init__()
        self.num_products = 0

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        flops: Callable[..., int] | None = flop_registry.get(func.overloadpacket)
        if flops is not None:
            self.num_products += flops(*args, **(kwargs or {}), out_val=result) // 2  # torch counts additions, too
        return result
