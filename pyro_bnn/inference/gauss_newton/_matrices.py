"""Gauss-Newton matrices, their diagonals and their Kronecker factors."""

from collections.abc import Callable, Iterable, Iterator
from functools import reduce
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from ..._core.inputs import (
    Inputs,
    Pair,
    arguments_of,
    call,
    has_shared,
    logits_of,
    map_inputs,
    named_leaves,
    num_rows,
    take,
)
from ..._core.scope import filtered_warnings
from ...modelling.likelihoods import (
    BernoulliLikelihood,
    CategoricalLikelihood,
    GaussianLikelihood,
    HeteroscedasticGaussianLikelihood,
    Likelihood,
    PoissonLikelihood,
)
from ..last_layer import owners, watched
from ._gaussian import CurvatureAlongAxes, kronecker

REMEDY = 'leave it out with `where`, or use structure="diagonal"'

MOST_NUMBERS = 2**24  # heuristic: most elements of Jacobians that are computed together; 67 MB in single precision
KNOWN_LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d)  # have formulas, unless a subclass has its own forward pass
NUM_TRIED = 16  # number of rows on which gradients from formulas are compared with those from autograd
TOLERANCE = 1e-3  # largest difference between these gradients, relative to the largest gradient


def summed_matrices(
    net: nn.Module, batches: Iterable[Pair], likelihood: Likelihood, *, is_full: bool, num_scales: int
) -> Tensor:
    """Sum the matrices, shape (P, P), or diagonals, shape (P,), of all rows for each of K noise scales, in float64."""
    total: Tensor | None = None
    matrix: Callable[[nn.Module, Inputs, Tensor], Tensor] | None = None
    for x, y in batches:
        matrix = matrix or _matrix_for(net, x, is_full=is_full)
        with torch.no_grad():
            output = call(net, x)
        assert isinstance(output, Tensor)
        root = root_of(likelihood, output, y)
        parts = root.split(1, -1) if num_scales > 1 else [root]
        found = torch.stack([matrix(net, x, part) for part in parts]).double()
        total = found if total is None else total.add_(found)
    assert total is not None
    return total


def _matrix_for(net: nn.Module, x: Inputs, *, is_full: bool) -> Callable[[nn.Module, Inputs, Tensor], Tensor]:
    if is_full:
        is_layer = type(net) is nn.Linear and all(p.requires_grad for p in net.parameters()) and isinstance(x, Tensor)
        return _full_of_layer if is_layer else _full
    # With a shared input, the rows of a layer may be those of the input, such as the nodes of a graph.
    return _diagonal_by_layer if not has_shared(x) and acts_by_layers(net, x) else _diagonal


# --- the curvature in the outputs -------------------------------------------------------------------------------------


def _of_two_halves(likelihood: HeteroscedasticGaussianLikelihood, output: Tensor) -> Tensor:
    log_variance = likelihood.split(output)[1]
    is_free = log_variance == output.chunk(2, -1)[1]  # at the limit of the noise, the log variance has no curvature
    return torch.cat([(-log_variance).exp(), 0.5 * is_free], -1)


DIAGONALS: dict[type, Callable[[Any, Tensor], Tensor]] = {
    GaussianLikelihood: lambda _, output: torch.ones_like(output),
    BernoulliLikelihood: lambda _, output: output.sigmoid() * (-output).sigmoid(),
    PoissonLikelihood: lambda _, output: output.exp(),
    HeteroscedasticGaussianLikelihood: _of_two_halves,
}
"""For each likelihood whose curvature is diagonal: a function from outputs to the diagonals, both of shape (N, C). For
Gaussian noise, the scale is taken to be 1."""

SERVED = (CategoricalLikelihood, *DIAGONALS)


def root_of(likelihood: Likelihood, output: Tensor, y: Tensor) -> Tensor:
    r"""Return L, shape (N, C, C), such that :math:`L L^\top` is the curvature of each row with respect to the outputs.

    The curvature of a row is the expected Hessian of its negative log-likelihood, times the likelihood's weights for
    the row and its class. Only these weights depend on y. For Gaussian noise, the scale is taken to be 1.
    """
    weights = likelihood.fit_weights(y, output.dtype)
    if type(likelihood) is CategoricalLikelihood:
        # diag(p) - p p^T for L = diag(sqrt p) - p sqrt(p)^T, since p sums to 1
        probs = output.softmax(-1)
        root = torch.diag_embed(probs.sqrt()) - probs[:, :, None] * probs.sqrt()[:, None, :]
        return root if weights is None else root * weights.sqrt()[:, None, None]
    values = DIAGONALS[type(likelihood)](likelihood, output)
    if weights is not None:
        values = values * weights.repeat(1, values.shape[1] // weights.shape[1])
    return torch.diag_embed(values.sqrt())


# --- from the Jacobians of single rows --------------------------------------------------------------------------------


def _full(net: nn.Module, x: Inputs, root: Tensor) -> Tensor:
    r"""Return :math:`\sum_n J_n^\top L_n L_n^\top J_n` for the P parameters that need gradients, shape (P, P)."""
    flat = (part.flatten(0, 1) for part in _rows(net, x, root))
    return reduce(torch.add, (rows.mT @ rows for rows in flat))


def _diagonal(net: nn.Module, x: Inputs, root: Tensor) -> Tensor:
    return reduce(torch.add, (part.square().sum((0, 1)) for part in _rows(net, x, root)))


def _rows(net: nn.Module, x: Inputs, root: Tensor) -> Iterator[Tensor]:
    """Yield L^T J, shape (n, R, P), for n rows at a time, as many as :data:`MOST_NUMBERS` allows."""
    parameters = {name: p.detach() for name, p in net.named_parameters() if p.requires_grad}
    numbers_of_row = root.shape[-1] * sum(value.numel() for value in parameters.values())
    count = max(1, MOST_NUMBERS // numbers_of_row)
    for start in range(0, num_rows(x), count):
        some = slice(start, start + count)
        yield _jacobians(net, parameters, take(x, some), root[some])


def _jacobians(net: nn.Module, parameters: dict[str, Tensor], x: Inputs, root: Tensor) -> Tensor:
    def of_row(values: dict[str, Tensor], row: list[Tensor], its_root: Tensor) -> Tensor:
        parts = iter(row)
        one = map_inputs(lambda _: next(parts)[None], x, with_rows=True)
        arguments, named = arguments_of(one)
        output: Any = logits_of(torch.func.functional_call(net, values, arguments, named))
        return its_root.mT @ output[0]

    rows = [leaf for _, leaf in named_leaves("x", x, with_rows=True)]
    try:
        with filtered_warnings("ignore", "There is a performance drop"):  # for operations that vmap runs row by row
            found = torch.func.vmap(torch.func.jacrev(of_row), in_dims=(None, 0, 0))(parameters, rows, root)
    except RuntimeError:  # for example, recurrent layers do not support this
        return torch.stack([_jacobian(net, take(x, slice(n, n + 1)), root[n]) for n in range(len(root))])
    return torch.cat([part.flatten(2).detach() for part in found.values()], -1)


@torch.enable_grad()
def _jacobian(net: nn.Module, x: Inputs, root: Tensor) -> Tensor:
    """Return L^T J of one row, shape (R, P), for a network that vmap does not support."""
    parameters = [p for p in net.parameters() if p.requires_grad]
    output = call(net, x)
    assert isinstance(output, Tensor)
    slopes = (
        torch.autograd.grad(number, parameters, retain_graph=True, materialize_grads=True)
        for number in root.mT @ output[0]
    )
    return torch.stack([torch.cat([part.flatten() for part in parts]) for parts in slopes])


# --- without Jacobians, from the inputs and outputs of layers ---------------------------------------------------------


def _full_of_layer(layer: nn.Module, x: Inputs, root: Tensor) -> Tensor:
    """Return the matrix of :func:`_full` for a single linear layer whose parameters all need gradients.

    The block for the weights of outputs c and k is sum_n (L_n L_n^T)[c, k] x_n x_n^T, where L_n is ``root[n]``. A bias
    is the weight of one more input, which is always 1.
    """
    assert isinstance(layer, nn.Linear)
    assert isinstance(x, Tensor)
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


def _diagonal_by_layer(net: nn.Module, x: Inputs, root: Tensor) -> Tensor:
    r"""Return the result of :func:`_diagonal` for networks that pass :func:`acts_by_layers`.

    The gradients :math:`J_n^\top L_{n \cdot r}` are squared and summed over rows n and columns r. One backward pass per
    column computes the gradients of all rows; see Dangel, Kunstner and Hennig (2020), BackPACK,
    https://arxiv.org/abs/1912.10985.
    """
    output, calls = watched(net, x)
    if not all(len(s) == 1 and len(s[0][0]) == len(root) and has_formula(layer) for layer, s in calls.items()):
        return _diagonal(net, x, root)
    parameters = [p for p in net.parameters() if p.requires_grad]
    sums = {id(parameter): torch.zeros_like(parameter) for parameter in parameters}
    for column in root.unbind(-1):
        slopes = torch.autograd.grad(output, [some[0][1] for some in calls.values()], column, retain_graph=True)
        for (layer, some), slope in zip(calls.items(), slopes, strict=True):
            _add_squares(layer, inputs_at(layer, some[0][0]), slopes_at(layer, slope), sums)
    return torch.cat([sums[id(parameter)].flatten() for parameter in parameters]).detach()


def _add_squares(layer: nn.Module, inputs: Tensor, slopes: Tensor, sums: dict[int, Tensor]) -> None:
    """Add the squared gradients of rows to `sums`; `inputs` and `slopes` have shapes (N, T, D) and (N, T, O)."""
    if inputs.shape[1] == 1:
        squares = slopes[:, 0].square().mT @ inputs[:, 0].square()
    else:
        squares = (slopes.mT @ inputs).square().sum(0)
    found = {"weight": squares, "bias": slopes.sum(1).square().sum(0)}
    for name, parameter in layer.named_parameters(recurse=False):
        if parameter.requires_grad:
            sums[id(parameter)] += found[name].view(parameter.shape)


# --- the inputs and the gradients of layers ---------------------------------------------------------------------------


def has_formula(layer: nn.Module) -> bool:
    r"""Whether the gradients of a row are the following sums over the positions t of :func:`inputs_at`.

    .. math:: \nabla_W = \sum_t g_t a_t^\top, \qquad \nabla_b = \sum_t g_t,

    where :math:`a_t` is the input at position t, and :math:`g_t` the gradient with respect to the output there.
    """
    if isinstance(layer, (nn.Conv1d, nn.Conv2d)):
        return layer.groups == 1 and layer.padding_mode == "zeros" and not isinstance(layer.padding, str)
    return isinstance(layer, nn.Linear)


def inputs_at(layer: nn.Module, x: Tensor) -> Tensor:
    """Return the vectors that a layer multiplies by its weights, shape (N, T, D), at T positions of each row."""
    if isinstance(layer, (nn.Conv1d, nn.Conv2d)):
        sizes = [layer.kernel_size, layer.dilation, layer.padding, layer.stride]
        if isinstance(layer, nn.Conv1d):  # a convolution of images of height 1
            x = x.unsqueeze(2)
            sizes = [(neutral, *size) for neutral, size in zip((1, 1, 0, 1), sizes, strict=True)]
        return functional.unfold(x, *sizes).mT  # type: ignore[arg-type]
    return x.reshape(len(x), -1, x.shape[-1])


def slopes_at(layer: nn.Module, slope: Tensor) -> Tensor:
    """Reshape a gradient with respect to a layer's output to (N, T, O), with N and T as in :func:`inputs_at`."""
    if isinstance(layer, (nn.Conv1d, nn.Conv2d)):
        return slope.flatten(2).mT
    return slope.reshape(len(slope), -1, slope.shape[-1])


def acts_by_layers(net: nn.Module, x: Inputs) -> bool:
    """Whether the formulas of standard layers give the same gradients as autograd, on 16 rows."""
    parameters = [p for p in net.parameters() if p.requires_grad]
    if not all(isinstance(layer, KNOWN_LAYERS) for layer in owners(net)):
        return False
    with torch.enable_grad():
        output, calls = watched(net, take(x, slice(min(NUM_TRIED, num_rows(x)))))
        along = torch.linspace(1, 2, output.numel()).to(output).view(output.shape)
        expected = torch.autograd.grad(output, parameters, along, retain_graph=True, materialize_grads=True)
        pairs = [(layer, single) for layer, some in calls.items() for single in some]
        slopes = torch.autograd.grad(output, [o for _, (_, o) in pairs], along, materialize_grads=True)
        found = {id(parameter): torch.zeros_like(parameter) for parameter in parameters}
        for (layer, (taken, _)), slope in zip(pairs, slopes, strict=True):
            kind = next(kind for kind in KNOWN_LAYERS if isinstance(layer, kind))
            own = [p for p in layer.parameters(recurse=False) if p.requires_grad]
            given = kind.forward(layer, taken)  # type: ignore[arg-type]
            if given.shape != slope.shape:
                return False
            for parameter, part in zip(own, torch.autograd.grad(given, own, slope), strict=True):
                found[id(parameter)] += part
    pairs_of = zip(expected, found.values(), strict=True)
    return all(bool((a - b).abs().max() <= TOLERANCE * a.abs().max()) for a, b in pairs_of)


# --- Kronecker factors ------------------------------------------------------------------------------------------------


def kronecker_curvature(net: nn.Module, batches: Iterable[Pair], likelihood: Likelihood) -> CurvatureAlongAxes:
    r"""Return the curvature from the Kronecker factors of the layers whose parameters need gradients.

    .. math:: G \approx B \otimes A, \qquad B = \sum_{n, t, r} g_{ntr} g_{ntr}^\top, \qquad
              A = \frac{1}{N T} \sum_{n, t} a_{nt} a_{nt}^\top.

    Here :math:`a_{nt}` is the vector that the weight matrix multiplies at position t of row n. A row has T positions.
    Backpropagation of column r of :func:`root_of` from the network's output gives :math:`g_{ntr}` at this position of
    the layer's output. A bias has B as its only factor. If rows or classes have weights, A is a weighted mean. For
    Gaussian noise, the scale is taken to be 1.

    References:
        Martens and Grosse (2015), https://arxiv.org/abs/1503.05671, for linear layers. Eschenhagen et al. (2023),
        https://arxiv.org/abs/2311.00636, for layers with several positions (the setting "expand").
    """
    _require_layers(net)
    layers = owners(net)
    of_inputs: dict[nn.Module, Tensor] = {}
    of_outputs: dict[nn.Module, Tensor] = {}
    total = 0.0
    for x, y in batches:
        if not of_inputs:
            _require_standard(net, x)
        output, calls = watched(net, x)
        weights = likelihood.fit_weights(y, output.dtype)
        of_rows = output.new_ones(len(output)) if weights is None else weights.reshape(len(output), -1).mean(1)
        total += float(of_rows.sum())
        for layer in layers:
            inputs = torch.cat([inputs_at(layer, taken) for taken, _ in calls[layer]], 1)
            _add(of_inputs, layer, inputs * (of_rows / inputs.shape[1]).sqrt()[:, None, None])
        for column in root_of(likelihood, output.detach(), y).unbind(-1):
            outputs = [of_call for layer in layers for _, of_call in calls[layer]]
            slopes = iter(torch.autograd.grad(output, outputs, column, retain_graph=True))
            for layer in layers:
                _add(of_outputs, layer, torch.cat([slopes_at(layer, next(slopes)) for _ in calls[layer]], 1))
    means = {layer: products / total for layer, products in of_inputs.items()}
    factors = [
        [of_outputs[layer], means[layer]] if name == "weight" else [of_outputs[layer]]
        for layer in layers
        for name, _ in layer.named_parameters(recurse=False)
    ]
    return kronecker(factors)


def _add(sums: dict[nn.Module, Tensor], layer: nn.Module, vectors: Tensor) -> None:
    """Add the sum of v v^T over all `vectors` v, shape (N, T, D), to `sums[layer]`, in double precision."""
    flat = vectors.flatten(0, 1)
    products = (flat.mT @ flat).double()
    sums[layer] = sums[layer] + products if layer in sums else products


def _require_standard(net: nn.Module, x: Inputs) -> None:
    """Raise if x has a shared input, or if the formulas of standard layers give other gradients than the network."""
    if has_shared(x):
        raise ValueError(
            "Kronecker factors need layers with one row for each row of the data, but a shared input may have other "
            'rows, such as the nodes of a graph; make only the last layer random, or use structure="diagonal".'
        )
    if not acts_by_layers(net, x):
        raise ValueError(
            "Kronecker factors need standard layers, but the gradients of the layers differ from those of the "
            f"network: a layer has its own forward pass, or a weight is also used elsewhere; {REMEDY}."
        )


def _require_layers(net: nn.Module) -> None:
    """Raise unless each layer with random weights has a formula, and shares no parameters."""
    seen: set[int] = set()
    for name, module in net.named_modules():
        own = list(module.parameters(recurse=False))
        if not any(parameter.requires_grad for parameter in own):
            continue
        is_whole = all(parameter.requires_grad for parameter in own) and seen.isdisjoint(map(id, own))
        kind = type(module).__name__
        if not isinstance(module, KNOWN_LAYERS) or not is_whole:
            owner = f"{kind} `{name}`" if name else f"the network itself ({kind})"
            raise ValueError(
                "Kronecker factors need linear, or one- or two-dimensional convolutional layers whose weight and bias "
                f"are both random and shared with no other layer, but {owner} is no such layer; leave it out, as with "
                '`where=layers(nn.Linear, nn.Conv2d)`, or use structure="diagonal".'
            )
        if not has_formula(module):
            raise ValueError(
                "Kronecker factors need convolutions without groups, padded by a number of zeros, but "
                f"{kind} `{name}` has {module}; {REMEDY}."
            )
        seen |= set(map(id, own))
