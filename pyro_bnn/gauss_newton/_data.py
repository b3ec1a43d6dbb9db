"""The data of a fit: batches again and again, and the log-likelihood of all rows at a point with its gradient."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

import torch
from torch import Tensor

from .. import _checks
from .._inputs import Inputs, as_inputs, as_targets, num_rows, take, to_device
from ..model import BayesianModel


class Data:
    """All rows of a model's data set, in batches.

    Args:
        model: The model.
        data: A tuple (x, y) with all rows, or a loader of such pairs.
        batch_size: Number of rows in each batch of a tuple.

    Raises:
        ValueError: If the data can be run through only once, or have another number of rows than `num_data`.
    """

    def __init__(self, model: BayesianModel, data: object, batch_size: int) -> None:
        _checks.at_least("batch_size", batch_size, 1)
        if isinstance(data, Iterator):
            raise ValueError("`data` must be run through several times, got an iterator; pass tensors or a DataLoader.")
        if not isinstance(data, Iterable) or isinstance(data, (Tensor, str, Mapping)):
            raise ValueError(f"`data` must be a tuple (x, y) or a loader of such pairs, got {_checks.described(data)}.")
        if isinstance(data, tuple) and len(data) != 2:
            raise ValueError(f"`data` must be a pair (x, y), got {len(data)} parts; several inputs are ((a, b), y).")
        self._model, self._batch_size = model, batch_size
        self._data = self._pair(data) if isinstance(data, tuple) else data

    def _pair(self, pair: object) -> tuple[Inputs, Tensor]:
        if not isinstance(pair, (tuple, list)) or len(pair) != 2:
            raise ValueError(f"a batch must be a pair (x, y), got {_checks.described(pair)}; let the loader give both.")
        like = self._model.like
        x, y = as_inputs("x", pair[0], like), as_targets("y", pair[1], like)
        return to_device(x, like.device), y.to(like.device)

    def batches(self) -> Iterator[tuple[Inputs, Tensor]]:
        """The batches of one pass, on the device of the model."""
        if isinstance(self._data, tuple):
            x, y = self._data
            for start in range(0, num_rows(x), self._batch_size):
                part = slice(start, start + self._batch_size)
                yield take(x, part), y[part]
            return
        for batch in self._data:
            yield self._pair(batch)

    def first(self) -> Inputs:
        """The inputs of a first batch."""
        for x, _ in self.batches():
            return x
        raise ValueError("the loader is empty; pass one with at least one batch, which starts anew at each iteration.")

    def expansion(self, values: Mapping[str, Tensor], sites: Sequence[str]) -> tuple[float, Tensor]:
        """The log-likelihood of all rows in nats, and its gradient in some sites, shape (P,), in double precision.

        Args:
            values: Values of all latent variables.
            sites: Sites of the gradient, in order.

        Raises:
            ValueError: If the number of rows is not `num_data`, or a row does not fit the model.
        """
        leaves = [values[site].detach().clone().requires_grad_() for site in sites]
        given = {**values, **dict(zip(sites, leaves, strict=True))}
        total, rows = 0.0, 0
        gradient = torch.zeros(sum(map(torch.numel, leaves)), dtype=torch.float64, device=self._model.device)
        for x, y in self.batches():
            count = num_rows(x)
            with torch.enable_grad():
                density = self._model.log_likelihood(given, x, y) * (count / self._model.num_data)
                parts = torch.autograd.grad(density, leaves, materialize_grads=True)
            total, rows = total + float(density.detach()), rows + count
            gradient += torch.cat([part.flatten() for part in parts]).double()
        if rows != self._model.num_data:
            raise ValueError(
                f"`data` must have all {self._model.num_data} rows of the model's data set (`num_data`), got {rows}; "
                "pass all rows once, without `drop_last` and repeats, or build the model with their number."
            )
        return total, gradient
