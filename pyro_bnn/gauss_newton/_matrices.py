"""Full Gauss-Newton matrices and their diagonals, from the Jacobians of single rows."""

from collections.abc import Iterable, Iterator, Mapping

import torch
from torch import Tensor, nn

from .._inputs import Inputs, Pair, call, map_inputs, num_rows, take
from .._scope import filtered_warnings
from ..likelihoods import Likelihood
from ._layers import acts_by_layers, diagonal_by_layer
from ._outputs import root_of

MOST_NUMBERS = 2**24
"""Heuristic: numbers in the Jacobians of the rows that are computed together, 67 MB in single precision."""


def summed_matrices(
    net: nn.Module, batches: Iterable[Pair], likelihood: Likelihood, *, is_full: bool, num_scales: int
) -> Tensor:
    """The matrices of all rows in double precision, one for each noise scale: (K, P, P), or diagonals (K, P).

    Args:
        net: The network, in eval mode.
        batches: Inputs and targets.
        likelihood: One of those that :func:`root_of` takes.
        is_full: Whether to make whole matrices, or their diagonals.
        num_scales: Number K of noise scales: 1, or one for each output.
    """
    layer = net if type(net) is nn.Linear and all(p.requires_grad for p in net.parameters()) else None
    sums: list[Tensor] = []
    is_by_layer: bool | None = None
    for x, y in batches:
        with torch.no_grad():
            output = call(net, x)
        assert isinstance(output, Tensor)
        root = root_of(likelihood, output, y)
        parts = []
        for part in root.split(1, -1) if num_scales > 1 else [root]:
            if is_full:
                if layer is not None and isinstance(x, Tensor):
                    parts.append(full_matrix_of_layer(layer, x, part))
                else:
                    parts.append(full_matrix(net, x, part))
                continue
            if is_by_layer is None:
                is_by_layer = acts_by_layers(net, x)
            found = diagonal_by_layer(net, x, part) if is_by_layer else None
            parts.append(diagonal(net, x, part) if found is None else found)
        sums = [part.double() for part in parts] if not sums else [a.add_(b) for a, b in zip(sums, parts, strict=True)]
    return torch.stack(sums)


def full_matrix(net: nn.Module, x: Inputs, root: Tensor) -> Tensor:
    r"""The matrix :math:`\sum_n J_n^\top L_n L_n^\top J_n` in the parameters that need gradients, shape (P, P).

    Args:
        net: The network, in eval mode.
        x: Inputs of N rows.
        root: L, shape (N, C, R).
    """
    return _summed(flat.mT @ flat for flat in (part.flatten(0, 1) for part in _rows(net, x, root)))


def diagonal(net: nn.Module, x: Inputs, root: Tensor) -> Tensor:
    """The diagonal of :func:`full_matrix`, shape (P,)."""
    return _summed(part.square().sum((0, 1)) for part in _rows(net, x, root))


def full_matrix_of_layer(layer: nn.Linear, x: Tensor, root: Tensor) -> Tensor:
    """That of a network that is one linear layer, whose parameters all need gradients; without a Jacobian.

    The weights of outputs c and k have the block sum_n (L_n L_n^T)[c, k] x_n x_n^T, with a 1 in x for the bias.
    """
    of_outputs = root @ root.mT
    num_outputs, num_inputs = layer.weight.shape
    if layer.bias is not None:
        x = torch.cat([x, x.new_ones(len(x), 1)], 1)
    blocks = x.new_zeros(num_outputs, x.shape[1], num_outputs, x.shape[1])
    for c in range(num_outputs):
        for k in range(c + 1):
            blocks[c, :, k] = blocks[k, :, c] = (x * of_outputs[:, c, k, None]).mT @ x
    numbers = torch.arange(num_outputs * x.shape[1], device=x.device).view(num_outputs, -1)
    order = torch.cat([numbers[:, :num_inputs].flatten(), numbers[:, num_inputs:].flatten()])  # all weights first
    return blocks.flatten(2).flatten(0, 1)[order][:, order]


def _rows(net: nn.Module, x: Inputs, root: Tensor) -> Iterator[Tensor]:
    """L^T J of a few rows after the other, shape (n, R, P)."""
    parameters = {name: p.detach() for name, p in net.named_parameters() if p.requires_grad}
    numbers_of_row = root.shape[-1] * sum(value.numel() for value in parameters.values())
    count = max(1, MOST_NUMBERS // numbers_of_row)
    for start in range(0, num_rows(x), count):
        some = slice(start, start + count)
        yield _jacobians(net, parameters, take(x, some), root[some])


def _jacobians(net: nn.Module, parameters: dict[str, Tensor], x: Inputs, root: Tensor) -> Tensor:
    def of_row(values: dict[str, Tensor], row: Inputs, its_root: Tensor) -> Tensor:
        output = _called(net, values, map_inputs(lambda leaf: leaf[None], row))
        return its_root.mT @ output[0]

    try:
        with filtered_warnings("ignore", "There is a performance drop"):  # of operations that torch runs row by row
            found = torch.func.vmap(torch.func.jacrev(of_row), in_dims=(None, 0, 0))(parameters, x, root)
    except RuntimeError:  # such as a recurrent layer, which knows no such rows
        rows = (_jacobian(net, take(x, slice(n, n + 1)), root[n]) for n in range(len(root)))
        return torch.stack(list(rows))
    return torch.cat([part.flatten(2).detach() for part in found.values()], -1)


def _called(net: nn.Module, parameters: dict[str, Tensor], x: Inputs) -> Tensor:
    arguments = (x,) if isinstance(x, Tensor) else () if isinstance(x, Mapping) else tuple(x)
    named = dict(x) if isinstance(x, Mapping) else {}
    output: Tensor = torch.func.functional_call(net, parameters, arguments, named)
    return output


@torch.enable_grad()
def _jacobian(net: nn.Module, x: Inputs, root: Tensor) -> Tensor:
    """Of one row, shape (R, P), number by number."""
    parameters = [p for p in net.parameters() if p.requires_grad]
    output = call(net, x)
    assert isinstance(output, Tensor)
    slopes = (
        torch.autograd.grad(number, parameters, retain_graph=True, materialize_grads=True)
        for number in root.mT @ output[0]
    )
    return torch.stack([torch.cat([part.flatten() for part in parts]) for parts in slopes])


def _summed(parts: Iterator[Tensor]) -> Tensor:
    total = next(parts)
    for part in parts:
        total = total + part
    return total
