"""Gauss-Newton matrices by laplace-torch."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from .._extras import optional
from .._scope import filtered_warnings, restored
from ._curvature import Curvature, DiagonalCurvature, FullCurvature, kronecker
from ._diagonal import acts_by_layers, diagonal_by_layer

STRUCTURES = {"full": "FullLaplace", "kronecker": "KronLaplace", "diagonal": "DiagLaplace"}
"""Class of laplace-torch for each structure."""

MOST_NUMBERS = 2**24
"""Heuristic: numbers in the Jacobians of the rows that are computed together, 67 MB in single precision."""

Pair = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Rows:
    """Batches (x, y) as laplace-torch takes them: `dataset` has the length of the whole data set."""

    batches: Callable[[], Iterable[Pair]]
    dataset: range

    def __iter__(self) -> Iterator[Pair]:
        return iter(self.batches())


def library() -> Any:
    """The library; its import takes seconds.

    Raises:
        ImportError: If it is not installed; the message says how to get it.
    """
    return optional("laplace", "laplace-torch", "laplace")


def curvature_of(
    net: nn.Module,
    batches: Callable[[], Iterable[Pair]],
    num_data: int,
    *,
    noise_scale: float | None,
    structure: str,
) -> Curvature:
    """The Gauss-Newton matrix in the parameters of a network that need gradients.

    Args:
        net: The network, in eval mode. It may be changed.
        batches: Function that gives batches of inputs and targets, as often as it is called.
        num_data: Number of rows in all of them.
        noise_scale: Standard deviation of the noise in a regression; None for classes.
        structure: One of :data:`STRUCTURES`.

    Raises:
        ValueError: If the network has layers for which there is no such matrix.
    """
    if structure == "kronecker":
        _require_layers(net)
    by_layer = _only_linear(net) is not None
    if structure != "full" and not by_layer:
        by_layer = acts_by_layers(net, next(iter(batches()))[0])
    if structure == "kronecker" and not by_layer:
        raise ValueError(
            "Kronecker factors need random weights that act only through their layers, but the gradients of the layers "
            "are not those of the network: a layer has a forward pass of its own, or a weight is also used elsewhere; "
            'leave it out with `where`, or use structure="diagonal".'
        )
    likelihood = "classification" if noise_scale is None else "regression"
    with restored(next(net.parameters()).device), filtered_warnings("ignore"):  # the library may draw, and warn
        fitted = getattr(library(), STRUCTURES[structure])(net, likelihood, backend=_backend(by_layer))
        try:
            fitted.fit(Rows(batches, range(num_data)))
        except NotImplementedError as error:
            raise ValueError(
                f'laplace-torch cannot make this matrix ({error}); use another `structure`, such as "diagonal".'
            ) from error
    scale = 1.0 if noise_scale is None else 1 / noise_scale**2
    if structure == "kronecker":
        return kronecker(fitted.H_facs.kfacs, scale)
    matrix = fitted.H.detach().double() * scale
    return FullCurvature(matrix) if structure == "full" else DiagonalCurvature(matrix)


WITH_FACTORS = (nn.Linear, nn.Conv2d)
"""Layers that have Kronecker factors."""


def _require_layers(net: nn.Module) -> None:
    """Raise unless the random weights are those of whole layers with Kronecker factors, shared with no other layer."""
    seen: set[int] = set()
    for name, module in net.named_modules():
        own = list(module.parameters(recurse=False))
        if not any(parameter.requires_grad for parameter in own):
            continue
        is_whole = all(parameter.requires_grad for parameter in own) and seen.isdisjoint(map(id, own))
        if not isinstance(module, WITH_FACTORS) or not is_whole:
            raise ValueError(
                "Kronecker factors are of whole linear and two-dimensional convolutional layers, whose weight and bias "
                f"are both random and shared with no other layer, but {type(module).__name__} `{name}` is not; leave "
                'it out, as with `where=layers(nn.Linear, nn.Conv2d)`, or use structure="diagonal".'
            )
        seen |= set(map(id, own))


def _backend(is_by_layer: bool) -> type:
    """How laplace-torch gets its matrices: Kronecker factors by its own default, others from Jacobians of single rows.

    Its own Jacobians of a batch of B rows take B times as long, since they are those of all rows in all outputs.

    Args:
        is_by_layer: Whether a diagonal may be computed layer by layer.
    """
    curvlinops: Any = optional("laplace.curvature.curvlinops", "laplace-torch", "laplace")

    class ByRow(curvlinops.CurvlinopsGGN):
        """Gauss-Newton matrices from the Jacobians of few rows at once."""

        @torch.no_grad()
        def diag(self, x: Tensor, y: Tensor, **_: object) -> Pair:
            output = self.model(x)
            loss = self.factor * self.lossfunc(output, y)
            found = diagonal_by_layer(self.model, x, self._roots_of_outputs) if is_by_layer else None
            if found is not None:
                return loss, found
            return loss, _summed(roots.square().sum((0, 1)) for roots in self._roots(x, output))

        @torch.no_grad()
        def full(self, x: Tensor, y: Tensor, **_: object) -> Pair:
            output = self.model(x)
            loss = self.factor * self.lossfunc(output, y)
            if (layer := _only_linear(self.model)) is not None:
                return loss, _of_linear(layer, x, self._of_outputs(output))
            return loss, _summed(flat.mT @ flat for flat in (roots.flatten(0, 1) for roots in self._roots(x, output)))

        def _roots_of_outputs(self, output: Tensor) -> Tensor:
            """L of shape (N, C, C), so that the curvature of the loss in the outputs is L L^T."""
            if self.likelihood == "regression":
                return torch.eye(output.shape[-1]).to(output).expand(len(output), -1, -1)
            # diag(p) - p p^T for L = diag(sqrt p) - p sqrt(p)^T, since p sums to 1
            probs = output.softmax(-1)
            return torch.diag_embed(probs.sqrt()) - probs[:, :, None] * probs.sqrt()[:, None, :]

        def _of_outputs(self, output: Tensor) -> Tensor:
            """The curvature of the loss in the outputs, shape (N, C, C)."""
            roots = self._roots_of_outputs(output)
            return roots @ roots.mT

        def _roots(self, x: Tensor, output: Tensor) -> Iterator[Tensor]:
            """Of a few rows after the other, R of shape (N, C, P): the matrix is the sum of R^T R over all rows."""
            size = output.shape[-1] * sum(parameter.numel() for parameter in self.params)
            count = max(1, MOST_NUMBERS // size)
            for rows, of_rows in zip(x.split(count), output.split(count), strict=True):
                yield self._roots_of_outputs(of_rows).mT @ self._jacobians(rows)

        def _jacobians(self, x: Tensor) -> Tensor:
            values = {name: value.detach() for name, value in self.params_dict.items()}
            frozen = {n: p.detach() for n, p in self.model.named_parameters() if n not in values}
            fixed = {**frozen, **self.buffers_dict}

            def of_row(values: dict[str, Tensor], row: Tensor) -> Tensor:
                output: Tensor = torch.func.functional_call(self.model, {**fixed, **values}, (row[None],))
                return output[0]

            try:
                found = torch.func.vmap(torch.func.jacrev(of_row), in_dims=(None, 0))(values, x)
            except RuntimeError:  # such as a recurrent layer, which knows no such rows
                return torch.stack([self._jacobian(row[None]) for row in x])
            return torch.cat([part.flatten(2).detach() for part in found.values()], -1)

        @torch.enable_grad()
        def _jacobian(self, row: Tensor) -> Tensor:
            """Of one row, shape (C, P), output by output."""
            parameters = list(self.params_dict.values())
            slopes = (
                torch.autograd.grad(output, parameters, retain_graph=True, materialize_grads=True)
                for output in self.model(row)[0]
            )
            return torch.stack([torch.cat([part.flatten() for part in parts]) for parts in slopes])

    return ByRow


def _summed(parts: Iterator[Tensor]) -> Tensor:
    total = next(parts)
    for part in parts:
        total = total + part
    return total


def _only_linear(net: nn.Module) -> nn.Linear | None:
    """The layer of a network that is nothing but one linear layer with random weights."""
    layers = list(net.children())
    is_one = type(net) is nn.Sequential and len(layers) == 1 and type(layers[0]) is nn.Linear
    found = layers[0] if is_one else None
    assert found is None or isinstance(found, nn.Linear)
    return found if found is not None and all(p.requires_grad for p in found.parameters()) else None


def _of_linear(layer: nn.Linear, x: Tensor, of_outputs: Tensor) -> Tensor:
    """The matrix of one linear layer, from the curvature in its outputs, shape (N, C, C).

    The weights of outputs c and k have the block sum_n of_outputs[n, c, k] x_n x_n^T, with a 1 in x for the bias.
    """
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
