"""The summary of a model."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from ..._core.summary import MOST_LINES, Cell, Summary, counted, few, kind_of, shape_row
from ..likelihoods import Likelihood
from ..priors import WeightPrior
from ._selection import SITE_PREFIX, owned

MOST_ROWS = MOST_LINES - 5  # a model with more parameters has a row for each kind, such as `Linear.weight`
NAMES_WIDTH = 40  # largest number of characters for the names of layers in the last column

CALLS = "predictions: predict(model, posterior, x); model(x) only draws from the prior"  # for users of torch
VARIATIONAL = ", so fit(...) is variational"  # if the likelihood has learned numbers, as `GaussianLikelihood(None)` has
BATCH_NORM = "batch normalisation: fit(...) is variational; predict by a RefreshedPosterior"  # if it is in train mode

RANDOM, LEARNED, FROZEN = STATES = ("random", "learned", "frozen")


def summary_of(
    parts: tuple[nn.Module, WeightPrior, Likelihood],
    num_data: int,
    like: Tensor,
    latents: Mapping[str, torch.Size],
    declared: Sequence[str],
) -> Summary:
    """`latents` has the shapes of variables outside the likelihood. The network has priors for the sites `declared`."""
    network, prior, likelihood = parts
    others = {f"{SITE_PREFIX}.{name}": value for name, value in network.named_parameters()}
    others |= {f"likelihood.{name}": value for name, value in likelihood.named_parameters()}
    states = {name: LEARNED if value.requires_grad else FROZEN for name, value in others.items()}
    random = counted(sum(shape.numel() for shape in latents.values()), "number")
    title = f"BayesianModel of {type(network).__name__}: {random} with a prior"
    for state in (LEARNED, FROZEN):
        count = sum(value.numel() for name, value in others.items() if states[name] == state)
        title += f", {count:,} {state}" if count else ""
    shapes = {**latents, **{name: value.shape for name, value in others.items()}}
    states = dict.fromkeys(latents, RANDOM) | states
    rows: list[tuple[Cell, ...]] = [shape_row(name, shape, states[name]) for name, shape in shapes.items()]
    header = "parameter", "shape", "numbers", "state"
    if len(rows) > MOST_ROWS:
        rows = list(_rows_by_kind(shapes, states, _kinds(network, shapes)))
        header = "layer and parameter", "how many", "numbers", "layers" if any(row[-1] for row in rows) else ""
    own = f"; {few(declared)} {'has a prior of its own' if len(declared) == 1 else 'have priors of their own'}"
    data = f"data: {counted(num_data, 'row')}, {kind_of(like)}"
    is_learned = any(value.requires_grad for value in likelihood.parameters())
    noise = f"likelihood: {likelihood!r}{VARIATIONAL if is_learned else ''}"
    notes = [f"prior: {prior!r}{own if declared else ''}", noise, data, CALLS]
    if any(isinstance(layer, _BatchNorm) and layer.training for layer in network.modules()):
        notes.insert(0, BATCH_NORM)
    return Summary(title, notes, rows, header, most_lines=MOST_LINES + len(notes) - 3)


def _kinds(network: nn.Module, names: Iterable[str]) -> dict[str, str]:
    """Return the kind of each variable, such as ``Conv2d.weight``."""
    kinds = {name: f"{name.partition('.')[0]}.{name.rpartition('.')[2]}" for name in names}
    random = [(path, value) for path, value in network.named_buffers() if f"{SITE_PREFIX}.{path}" in kinds]
    of_layers = owned(network, [*random, *network.named_parameters()])
    return kinds | {parameter.name: parameter.kind for parameter in of_layers}


def _rows_by_kind(
    shapes: Mapping[str, torch.Size], states: Mapping[str, str], kinds: Mapping[str, str]
) -> Iterator[tuple[Cell, ...]]:
    """Yield rows with the numbers of random, learned and frozen variables of each kind.

    Kinds that occur in the same layers share a row, such as ``Linear.weight, bias``. A row names its layers only if
    they are at most half of all layers that have variables of this kind.
    """
    totals = Counter(kinds[name] for name in shapes)
    members: dict[tuple[str, str], list[str]] = {(state, kind): [] for state in STATES for kind in totals}
    for name in shapes:
        members[states[name], kinds[name]].append(name)
    rows: dict[tuple[str, str, tuple[str, ...], int], dict[str, int]] = {}
    for (state, kind), names in members.items():
        layer, _, leaf = kind.partition(".")
        layers = tuple(name.rpartition(".")[0] for name in names)
        if names:
            row = rows.setdefault((state, layer, layers, totals[kind]), {})
            row[leaf] = sum(shapes[name].numel() for name in names)
    for (state, layer, layers, total), numbers in rows.items():
        said = _named(layers) if 2 * len(layers) <= total else ""
        yield f"{layer}.{', '.join(numbers)}", f"{len(layers):,} of {total:,} {state}", sum(numbers.values()), said


def _named(layers: Sequence[str]) -> str:
    """List up to three names of layers, as many as fit into `NAMES_WIDTH`, and count the others."""
    paths = [layer.removeprefix(f"{SITE_PREFIX}.") for layer in layers]
    texts = [few(paths, most) for most in (3, 2, 1)]
    return next((text for text in texts if len(text) <= NAMES_WIDTH), texts[-1])
