"""A plain module that predicts with stored draws of the weights of a posterior."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions import Distribution

from ..._core import checks as _checks
from ..._core.copies import copied
from ..._core.functional import ordinary_attention
from ..._core.inputs import Inputs, arguments_of, as_inputs, has_shared, logits_of, map_inputs, num_rows
from ..._core.reflection import overridden_names
from ..._core.scope import EXCLUSIVE, filtered_warnings
from ...inference.guides import as_posterior
from ...inference.posterior import Draw, Posterior, default_num_draws
from ...modelling.model import BayesianModel, own_paths, require_bayesian
from ...results.prediction import new_seed, predict, predicted_draws
from ...scores.uncertainty import ClassificationPrediction, Prediction, RegressionPrediction

TOLERANCE = 1e-5  # largest accepted difference from `predict`; `tolerance` has larger ones for low precision
ROUNDINGS = 64  # heuristic: differences of up to this many rounding errors of the dtype are accepted


def answers(prediction: Prediction) -> dict[str, Tensor]:
    """Return the exported parts of a prediction."""
    if isinstance(prediction, ClassificationPrediction):
        names = ("probs", "aleatoric", "epistemic")
    elif isinstance(prediction, RegressionPrediction):
        names = ("mean", "aleatoric", "epistemic")
    else:
        raise ValueError(
            "an exported module needs a likelihood that predicts classes or numbers, got one whose prediction is a "
            f"{type(prediction).__name__}; serve this model with `predict`, or export its network by `sparse_network`."
        )
    return {name: getattr(prediction, name) for name in names}


def tolerance(dtype: torch.dtype) -> float:
    """Return the largest accepted difference from `predict` for a network's dtype."""
    return max(TOLERANCE, ROUNDINGS * torch.finfo(dtype).eps)


def largest_difference(found: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> float:
    """Return the largest difference of two predictions; NaN if their shapes differ, or if one has a NaN.

    In regression, compare means and standard deviations, relative to the largest finite number of them.
    """
    pairs = {name: (found[name].double(), value.double()) for name, value in expected.items()}
    if any(a.shape != b.shape for a, b in pairs.values()):
        return float("nan")
    unit = 1.0
    if "mean" in pairs:
        pairs = {name: pair if name == "mean" else (pair[0].sqrt(), pair[1].sqrt()) for name, pair in pairs.items()}
        unit = max(float(b.abs().nan_to_num(0.0, 0.0, 0.0).max()) for _, b in pairs.values()) or 1.0
    gaps = [torch.where(a == b, 0.0, a - b).abs().flatten() for a, b in pairs.values()]  # infinite variances are equal
    return float(torch.cat(gaps).max()) / unit


FEWEST_ZEROS = 0.5  # heuristic: a parameter is stored without zeros if this share is 0 in all draws


class StackedDraws(nn.Module):
    """The draws of one parameter, shape (K, ...)."""

    values: Tensor

    def __init__(self, draws: Tensor) -> None:
        super().__init__()
        self.register_buffer("values", draws)

    def forward(self) -> Tensor:
        return self.values


class SparseDraws(nn.Module):
    """The draws of one parameter, shape (K, ...), without elements that are zero in all draws, as after pruning."""

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
        """Return the draws with all elements, including those that are not stored."""
        zeros = self.values.new_zeros(len(self.values), self.shape[1:].numel())
        return zeros.index_copy(1, self.places.long(), self.values).reshape(self.shape)


def stored(draws: Tensor) -> StackedDraws | SparseDraws:
    """Store the draws of one parameter, shape (K, ...). If many elements are zero in all draws, leave these out."""
    is_zero = (draws == 0).all(0)
    few = is_zero.numel() and float(is_zero.double().mean()) >= FEWEST_ZEROS
    return SparseDraws(draws) if few else StackedDraws(draws.contiguous())


try:
    from torch._higher_order_ops import scan as _scan
except ImportError:  # an older torch
    _scan = None  # type: ignore[assignment]


TRACED_ROWS = 23  # heuristic: rows for tracing, a number that no other axis should have

Run = Callable[[Mapping[str, Tensor]], Tensor]  # from the weights of a draw, by path


class PredictiveModule(nn.Module):
    r"""A plain `torch.nn.Module` that maps x to the mean and the uncertainty of a prediction.

    The module stores K draws of the weights. Its results are those of ``predict(model, posterior, x,
    num_samples=module.num_samples, seed=module.seed)`` up to rounding. The constructor checks this on x.

    The module can be called, compiled with `torch.compile`, and exported by `torch.export.export` with any number of
    rows; see also :func:`~pyro_bnn.export_onnx`. It has buffers and no parameters, can be moved to another device, and
    may be called by several threads. Weights that are equal in all draws are stored once. Removed weights
    (:func:`~pyro_bnn.pruning.prune`) are not stored if they make up at least half of a parameter.

    Args:
        model: The model.
        posterior: Result of a fit, or any Pyro guide.
        x: Example inputs, shape (N, ...), as for `predict`: two or more typical rows.
        num_samples: Number of draws of the weights, K, at least 2; by default as in :func:`~pyro_bnn.predict`.
        seed: Seed of the draws; with ``None``, a seed is drawn.

    Raises:
        ValueError: If the model, network or likelihood cannot be exported.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> import pyro_bnn as pb
        >>> net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
        >>> prior, labels = pb.NormalPrior(), pb.CategoricalLikelihood()
        >>> model = pb.BayesianModel(net, prior=prior, likelihood=labels, num_data=6)
        >>> x, guide = torch.randn(6, 4), pb.MeanFieldGuide(model)
        >>> module = pb.interop.PredictiveModule(
        ...     model, guide, x, num_samples=20, seed=0
        ... )
        >>> {name: tuple(value.shape) for name, value in module(x).items()}
        {'probs': (6, 3), 'aleatoric': (6,), 'epistemic': (6,)}
        >>> expected = pb.predict(model, guide, x, num_samples=20, seed=0)
        >>> torch.allclose(module(x)["epistemic"], expected.epistemic)
        True
    """

    def __init__(
        self,
        model: BayesianModel,
        posterior: Posterior | Callable[..., object],
        x: Inputs,
        *,
        num_samples: int | None = None,
        seed: int | None = None,
    ) -> None:
        super().__init__()
        require_bayesian(model)
        source = as_posterior(posterior)
        _require_exportable(model, source)
        if num_samples is None:
            num_samples = default_num_draws(model, source)
        self.num_samples = _checks.at_least("num_samples", num_samples, 2)
        """Number of draws of the weights, K."""
        self.seed = new_seed(seed)
        """Seed with which `predict` gives the same results."""
        x = as_inputs("x", x, model.like)
        if has_shared(x):
            raise ValueError(
                "`x` must hold inputs with one row for each prediction, got a Shared input; register the shared values "
                "as a buffer of the network, and export that network."
            )
        expected = answers(predict(model, source, x, num_samples=self.num_samples, seed=self.seed))
        draws = predicted_draws(model, source, x, num_samples=self.num_samples, seed=self.seed)
        self._store(model, draws)
        self.requires_grad_(False).eval()
        self.computation = self._exportable_computation(x)
        """How the network runs: for all draws at once ("vmap"), or in a loop within the exported graph ("scan"). If
        torch can export neither, the value is "loop": an exported graph then has a copy of the network for each draw,
        and cannot have recurrent layers."""
        self._require_agreement(x, expected)

    def train(self, mode: bool = True) -> PredictiveModule:
        """Stay in evaluation mode, in which `predict` runs networks, too; `mode` is ignored."""
        return super().train(False)

    def _store(self, model: BayesianModel, draws: Draw) -> None:
        own, values = own_paths(model), model.network_weights(draws)
        others = [name for name in draws if name not in model.latent_names]
        unknown = [name for name in others if name not in own]
        if unknown:
            raise ValueError(
                f"a network with random variables of its own cannot be exported, got {unknown[:3]}; make them "
                "parameters of the network, which get a prior."
            )
        values |= {own[name]: draws[name] for name in others}
        self.network = copied(model.network)
        """The network. The values of its random parameters are in `draws`."""
        self.draws = nn.ModuleDict()
        """The draws of the weights of each random parameter."""
        self._keys: dict[str, str] = {}  # of each path in `draws`
        keys: dict[int, str] = {}  # of tied weights, which are one tensor
        seen = set[tuple[nn.Module, str]]()
        for path, value in values.items():
            owner, _, name = path.rpartition(".")
            place = self.network.get_submodule(owner), name
            if place in seen:  # by another path, since the layer is used twice
                continue
            seen.add(place)
            value = value.detach()
            if bool((value == value[:1]).all()):
                _replace(self.network, path, value[0])
                continue
            if id(values[path]) not in keys:
                keys[id(values[path])] = re.sub(r"\W", "_", path) + f"_{len(keys)}"
                self.draws[keys[id(values[path])]] = stored(value)
            self._keys[path] = keys[id(values[path])]
            _replace(self.network, path, value.new_zeros(0))
        self.likelihood = copy.deepcopy(model.likelihood)
        """The likelihood. The values of its latent variables are in `noise`."""
        self.noise = nn.ModuleDict(
            {
                name.removeprefix("likelihood."): stored(value.detach())
                for name, value in draws.items()
                if name.startswith("likelihood.") and name in model.latent_names
            }
        )

    def forward(self, x: Inputs) -> dict[str, Tensor]:
        """Return the parts of the prediction for x, by name, with names and units of `predict`.

        Args:
            x: A tensor of shape (N, ...); for several inputs, a tuple or a dictionary of these.

        Returns:
            In regression, ``mean`` and the variances ``aleatoric`` and ``epistemic``, each of shape ``(N, *O)``. In
            classification, ``probs`` of shape (N, C), ``aleatoric`` (expected entropy) and ``epistemic`` (mutual
            information of label and weights). Both uncertainties are in nats, and have the shape (N,).
        """
        outputs = self._outputs(x)  # (K, N, ...), first, since a compiled `scan` loses track of objects made before it
        likelihood = self.likelihood.given({name: values() for name, values in self.noise.items()})
        sums = likelihood.accumulator()
        sums.add_draws(likelihood.forward(outputs), keep=False)  # `forward`: Pyro's call cannot be compiled
        return answers(sums.prediction(None))

    def _outputs(self, x: Inputs) -> Tensor:
        """Return the outputs for all draws, shape (K, N, ...)."""
        weights = {path: self.draws[key]() for path, key in self._keys.items()}
        run = partial(_output, self.network, x)
        if torch.compiler.is_compiling():
            return self._for_all(run, weights)
        with EXCLUSIVE:  # the network has the weights of a draw meanwhile, and threads may share it
            return self._for_all(run, weights)

    def _for_all(self, run: Run, weights: dict[str, Tensor]) -> Tensor:
        if not weights:  # all draws are equal
            output = run({})
            return output.expand(self.num_samples, *output.shape)
        if self.computation == "vmap":
            result: Tensor = torch.func.vmap(run)(weights)
            return result
        if self.computation == "scan" and torch.compiler.is_compiling():
            start = torch.zeros((), dtype=torch.long)  # `scan` needs a value that passes from draw to draw
            return _scan(lambda count, row: (count + 1, run(row).clone()), start, weights)[1]
        rows = ({path: value[i] for path, value in weights.items()} for i in range(self.num_samples))
        return torch.stack([run(row) for row in rows])

    def _exportable_computation(self, x: Inputs) -> str:
        """Return the fastest computation that torch can export."""
        for computation in ("vmap",) if _scan is None else ("vmap", "scan"):
            self.computation = computation
            try:
                with filtered_warnings("error", "There is a performance drop"):
                    exported(self, x)
            except Exception:  # torch has many errors for what `vmap`, `scan` or symbolic sizes lack
                continue
            return computation
        return "loop"

    def _require_agreement(self, x: Inputs, expected: Mapping[str, Tensor]) -> None:
        with torch.no_grad():
            found, again = self(x), self(x)
        if any(not torch.equal(found[name], again[name]) for name in expected):
            raise ValueError(
                "an exported module must predict the same at every call, but the network or the likelihood draws "
                "random numbers, as `nets.MCDropout` does; remove the layer that draws."
            )
        difference = largest_difference(found, expected)
        tensors = [*self.draws.buffers(), *self.network.parameters(), *self.network.buffers()]
        dtype = next(value.dtype for value in tensors if value.is_floating_point())
        if not difference <= tolerance(dtype):
            raise ValueError(
                f"the module must give the results of `predict`, but differs by {difference:.2g} on `x`; serve this "
                f"model with `predict`, since its likelihood {type(self.likelihood).__name__} or its network cannot be "
                "exported."
            )

    def extra_repr(self) -> str:
        """Return the number of draws, the seed, and how the network runs."""
        return f"num_samples={self.num_samples}, seed={self.seed}, computation={self.computation!r}"


def exported(module: PredictiveModule, x: Inputs) -> Any:
    """Export the module as a `torch.export.ExportedProgram` for inputs like x, with any number of rows."""
    rows = torch.export.Dim("rows")
    index = torch.arange(TRACED_ROWS) % num_rows(x)
    example = map_inputs(lambda leaf: leaf.index_select(0, index.to(leaf.device)), x)
    shapes = map_inputs(lambda _: {0: rows}, x)  # type: ignore[arg-type, return-value]  # any function of tensors
    with torch.no_grad(), ordinary_attention(), checks_kept():
        return torch.export.export(module, (example,), dynamic_shapes=(shapes,), strict=False)


@contextmanager
def checks_kept() -> Iterator[None]:
    """After a `with` block, restore distributions' argument checks, which torch turns off when it traces loops."""
    with EXCLUSIVE:
        before = Distribution._validate_args
        try:
            yield
        finally:
            Distribution.set_default_validate_args(before)


def _output(net: nn.Module, x: Inputs, weights: Mapping[str, Tensor]) -> Tensor:
    arguments, named = arguments_of(x)
    output = logits_of(torch.func.functional_call(net, dict(weights), arguments, named, tie_weights=False))
    assert isinstance(output, Tensor)  # as `predict` has checked
    return output


def _replace(net: nn.Module, path: str, value: Tensor) -> None:
    owner, _, name = path.rpartition(".")
    layer = net.get_submodule(owner)
    if name in layer._parameters:
        layer._parameters[name] = nn.Parameter(value, requires_grad=False)
    else:
        layer._buffers[name] = value


def _require_exportable(model: object, posterior: Posterior) -> None:
    """Raise if the model overrides methods, or if predictions of the posterior are linearised."""
    assert isinstance(model, BayesianModel)
    overridden = overridden_names(type(model), BayesianModel)
    if overridden:
        raise ValueError(
            f"`model` must be a plain BayesianModel, got {type(model).__name__}, which overrides {overridden[:3]}, and "
            "whose code an exported module would not run; put the change into the network or the likelihood."
        )
    if posterior.is_linearised:
        raise ValueError(
            f"a posterior of {posterior.method} predicts with a linearised network, which cannot be exported; fit only "
            "the last layer (`where=`), whose predictions need no linearisation, or fit with `fit_svi`."
        )
