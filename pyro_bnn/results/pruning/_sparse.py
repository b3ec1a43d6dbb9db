"""Networks without the removed weights."""

import functools
import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ..._core import checks as _checks
from ..._core.copies import copied
from ..._core.scope import filtered_warnings
from ...modelling.model import BayesianModel, carried_paths, require_bayesian

MAX_DENSITY = 0.1
"""Largest share of nonzero weights in a sparse layer.

On a CPU, a sparse layer with this share takes 0.6 times as long as a dense layer.
"""


class SparseLinear(nn.Module):
    r"""The layer :math:`y = x W^\top + b` with a sparse matrix W, stored row by row.

    It has buffers instead of parameters, so it cannot be trained.

    Args:
        weight: The matrix, shape (O, D), dense.
        bias: The bias, shape (O,), or None.

    Example:
        >>> import torch
        >>> from pyro_bnn import pruning
        >>> layer = pruning.SparseLinear(torch.tensor([[0.0, 2.0], [0.0, 0.0]]), None)
        >>> layer(torch.tensor([[1.0, 3.0]])), layer.values
        (tensor([[6., 0.]]), tensor([2.]))
    """

    row_starts: Tensor
    columns: Tensor
    values: Tensor
    bias: Tensor | None

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        _checks.finite("weight", _checks.real_tensor("weight", weight))
        if weight.dim() != 2 or weight.numel() == 0:
            raise ValueError(f"`weight` must have shape (O, D), got {_checks.shape(weight)}.")
        self.out_features, self.in_features = weight.shape
        if bias is not None and _checks.real_tensor("bias", bias).shape != weight.shape[:1]:
            raise ValueError(f"`bias` must have shape ({len(weight)},), got {_checks.shape(bias)}.")
        if bias is not None:
            _checks.finite("bias", bias)
        _use_up_warning()
        rows = weight.detach().to_sparse_csr()
        self.register_buffer("row_starts", rows.crow_indices().int())
        self.register_buffer("columns", rows.col_indices().int())
        self.register_buffer("values", rows.values())
        self.register_buffer("bias", None if bias is None else bias.detach().clone())

    def __setstate__(self, state: dict[str, Any]) -> None:
        _use_up_warning()
        super().__setstate__(state)

    def _rows(self) -> Tensor:
        shape = (self.out_features, self.in_features)
        return torch.sparse_csr_tensor(self.row_starts, self.columns, self.values, shape, check_invariants=False)

    @property
    def weight(self) -> Tensor:
        """The dense matrix, shape (O, D), for code that reads this attribute."""
        return self._rows().to_dense()

    def forward(self, x: Tensor) -> Tensor:
        """Return the output, shape (..., O), for x of shape (..., D)."""
        if _checks.tensor("x", x).dim() == 0 or x.shape[-1] != self.in_features:
            raise ValueError(f"`x` must have shape (..., {self.in_features}), got {_checks.shape(x)}.")
        output = torch.sparse.mm(self._rows(), x.reshape(-1, self.in_features).T).T
        output = output.reshape(*x.shape[:-1], self.out_features)
        return output if self.bias is None else output + self.bias

    def extra_repr(self) -> str:
        """Return the sizes and the share of nonzero elements."""
        density = len(self.values) / (self.in_features * self.out_features)
        return f"in_features={self.in_features}, out_features={self.out_features}, density={density:.4g}"


def sparse_network(
    model: BayesianModel, values: Mapping[str, Tensor], *, max_density: float | None = MAX_DENSITY
) -> nn.Module:
    """Return a plain network with given weights, whose linear layers with few nonzero weights are sparse.

    For the mean weights of a pruned posterior, call ``sparse_network(model, posterior.median())``. For an ensemble,
    make one network for each of ``posterior.draws(num_samples)``, and average their outputs.

    The network is in eval mode. Its sparse layers are instances of :class:`SparseLinear`, the only class of this
    package that the network uses.

    Args:
        model: The model, whose network is copied.
        values: A value for each random parameter, ``{site: shape (*event)}``, and optionally for the network's learned
            parameters and buffers, ``{"net.PATH": value}``, such as statistics of batch normalisation.
        max_density: Largest share of nonzero weights in a layer that becomes sparse; with ``None``, all stay dense.

    Returns:
        The network, on the device and in the dtype of the model.

    Raises:
        ValueError: If a random parameter has no value, or a value of another shape, or if a name is unknown.

    Example:
        >>> import torch
        >>> import pyro_bnn as pb
        >>> net, prior = torch.nn.Linear(100, 10), pb.NormalPrior()
        >>> labels = pb.CategoricalLikelihood()
        >>> model = pb.BayesianModel(net, prior=prior, likelihood=labels, num_data=20)
        >>> small = pb.pruning.prune(pb.MeanFieldGuide(model), fraction=0.95)
        >>> sparse = pb.pruning.sparse_network(model, small.median())
        >>> type(sparse).__name__
        'SparseLinear'
    """
    require_bayesian(model)
    _checks.kind("values", values, Mapping, "a dict of weights, such as `posterior.median()`")
    own = dict(itertools.chain(model.network.named_parameters(), model.network.named_buffers()))
    carried = carried_paths(model, values)
    shapes = {name: _checks.shape(model.initial_value(name)) for name in model.site_names}
    _checks.weights("values", values, shapes | {name: _checks.shape(own[path]) for name, path in carried.items()})
    if max_density is not None and not 0 <= _checks.as_float(max_density) <= 1:
        raise ValueError(f"`max_density` must lie between 0 and 1, or be None, got {_checks.got(max_density)}.")
    net = copied(model.network)
    with torch.no_grad():
        copies = dict(itertools.chain(net.named_parameters(), net.named_buffers()))
        for name, path in carried.items():
            copies[path].copy_(values[name])
        for path, weight in model.network_weights(values).items():
            owner, _, leaf = path.rpartition(".")
            module = net.get_submodule(owner)
            if module._buffers.pop(leaf, None) is not None:  # None if already done: a module may be used twice
                value = weight.detach().to(model.device, model.dtype, copy=True)
                module.register_parameter(leaf, nn.Parameter(value, requires_grad=False))
        sparse = {layer: SparseLinear(layer.weight, layer.bias) for layer in _nearly_empty(net, max_density)}
    if net in sparse:
        return sparse[net].eval()
    for path, layer in list(net.named_modules(remove_duplicate=False)):
        if layer in sparse:
            owner, _, leaf = path.rpartition(".")
            net.get_submodule(owner).add_module(leaf, sparse[layer])
    return net.eval()


def _nearly_empty(net: nn.Module, max_density: float | None) -> Iterator[nn.Linear]:
    """Yield linear layers with few nonzero weights, except those with hooks, which a sparse layer would not have."""
    for layer in net.modules():
        has_hooks = layer._forward_hooks or layer._forward_pre_hooks or "forward" in vars(layer)
        if max_density is None or type(layer) is not nn.Linear or has_hooks:
            continue
        if int((layer.weight != 0).sum()) <= max_density * layer.weight.numel():
            yield layer


@functools.cache
def _use_up_warning() -> None:
    """Make a sparse matrix, and ignore the warning that torch gives only for the first one."""
    with filtered_warnings("ignore", "Sparse CSR"):
        torch.ones(1, 1).to_sparse_csr()
