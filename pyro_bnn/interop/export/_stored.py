"""Modules that store weight draws, either all of them or without the weights that are zero in all draws."""

from torch import Tensor, nn

FEWEST_ZEROS = 0.5
"""Heuristic: smallest share of weights that are always zero for leaving them out, as others need an index."""


class StackedDraws(nn.Module):
    """The draws of one parameter, shape (K, ...)."""

    values: Tensor

    def __init__(self, draws: Tensor) -> None:
        super().__init__()
        self.register_buffer("values", draws)

    def forward(self) -> Tensor:
        """Return the draws, shape (K, ...)."""
        return self.values


class SparseDraws(nn.Module):
    """The draws of one parameter, without the elements that are zero in all draws, as after pruning."""

    values: Tensor
    places: Tensor

    def __init__(self, draws: Tensor) -> None:
        super().__init__()
        self.shape = draws.shape
        flat = draws.flatten(1)  # (K, P)
        places = (flat != 0).any(0).nonzero().flatten()
        self.register_buffer("places", places.int())  # half the size; parameters have fewer than 2^31 elements
        self.register_buffer("values", flat[:, places].contiguous())  # (K, number of places)

    def forward(self) -> Tensor:
        """Return the draws, shape (K, ...), with a zero for each element that is not stored."""
        zeros = self.values.new_zeros(len(self.values), self.shape[1:].numel())
        return zeros.index_copy(1, self.places.long(), self.values).reshape(self.shape)


def stored(draws: Tensor) -> StackedDraws | SparseDraws:
    """Return a module that stores the draws of one parameter, shape (K, ...), without zeros if they are many."""
    is_zero = (draws == 0).all(0)
    few = is_zero.numel() and float(is_zero.double().mean()) >= FEWEST_ZEROS
    return SparseDraws(draws) if few else StackedDraws(draws.contiguous())
