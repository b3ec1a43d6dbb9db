"""The predictions that `predict` returns, and their data frames."""

import inspect
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import torch
from torch import Tensor
from torch.distributions import Distribution
from typing_extensions import TypeVar

from ..._core import checks as _checks
from ..._core.inputs import as_targets
from ..._core.reflection import move_distribution
from ..._core.remedies import Advised, instead
from ..._core.summary import Shown, Summary, counted
from .. import metrics
from ._entropy import require_two
from ._quantiles import levels_of

if TYPE_CHECKING:
    import pandas

P = TypeVar("P", bound="Prediction")
Q = TypeVar("Q", bound="Prediction")
P_co = TypeVar("P_co", bound="Prediction", covariant=True, default="Prediction")
"""Type of the predictions of a model, likelihood or running sum."""

DRAWS_FIRST = ("logits", "components", "values")  # fields with draws on the first axis, and data on the second
MOST_KEPT = 2**20  # heuristic: most elements that `predict` keeps by default; a million Gaussians take 8 MB
HEAD, NOTEBOOK_HEAD, CELL = (3, 76), (5, 140), 8  # most rows and characters in a row; least width of a cell
HALF = (torch.float16, torch.bfloat16)  # floating-point types that data frames hardly support


@dataclass(frozen=True, repr=False)
class Prediction(Advised, Shown, ABC):
    """Result of `predict`. Subclasses have class probabilities or, in regression, moments of the targets.

    ``prediction[rows]`` is the prediction of a part of the inputs. `rows` is a boolean mask of shape (N,), row numbers,
    a slice, or a single row number, which gives a prediction with one row.

    Args:
        num_samples: Number of draws of the weights, S.
        log_density: Log-density or log-probability of each row's targets under the mixture of all draws, jointly over
            outputs, in nats, shape (N,). None without targets.
        targets: Targets whose log-density is `log_density`, N rows; None without targets.
        seed: Seed of the draws; None if unknown. Predictions of one posterior with the same seed and number of draws
            use the same draws.
        draws_are: What a draw is called in the summary: a "draw", or a "member" of an ensemble of plain networks.

    Example:
        >>> import torch
        >>> import pyro_bnn as pb
        >>> x = torch.linspace(-1, 1, 20)[:, None]
        >>> net, prior = torch.nn.Linear(1, 1), pb.NormalPrior()
        >>> noise = pb.GaussianLikelihood(0.1)
        >>> model = pb.BayesianModel(net, prior=prior, likelihood=noise, num_data=20)
        >>> posterior = pb.fit_laplace(model, (x, 2 * x))
        >>> prediction = pb.predict(model, posterior, x, y=2 * x, seed=0)
        >>> len(prediction), len(prediction[:5]), prediction.num_samples
        (20, 5, 100)
        >>> sorted(prediction.score())
        ['crps', 'nll', 'rmse']
    """

    num_samples: int
    log_density: Tensor | None
    targets: Tensor | None = field(default=None, kw_only=True)
    seed: int | None = field(default=None, kw_only=True)
    draws_are: str = field(default="draw", kw_only=True)

    @property
    @abstractmethod
    def expectation(self) -> Tensor:
        """Mean of the predictive distribution: class probabilities (N, C) or, in regression, means ``(N, *O)``."""

    def _summary(self) -> Summary:
        return self._with_head(*HEAD)

    def _notebook_summary(self) -> Summary:
        return self._with_head(*NOTEBOOK_HEAD)

    def _with_head(self, most_rows: int, width: int) -> Summary:
        """Return a summary with the first rows and columns of the data frame."""
        size = f"{counted(len(self), 'row')}, {self._axes_in_words()}, {counted(self.num_samples, self.draws_are)}"
        notes = self._uncertainty_in_words().splitlines() if len(self) else []
        if self.log_density is not None and len(self):
            notes.append(f"mean negative log-density of the targets: {self.nll:.3g} nats")
        device = self.expectation.device
        place = "" if device.type == "cpu" else f", on {device}"
        title = f"{type(self).__name__}: {size}{place}"
        if not len(self):
            return Summary(title, notes)
        head = self[:most_rows].to_frame()
        ends = np.cumsum([max(len(name), CELL) + 2 for name in head.columns])
        names = head.columns[ends <= width]
        if len(self) > len(head) or len(head.columns) > len(names):
            shown = "row" if len(head) == 1 else f"{len(head)} rows"
            notes.append(f"first {shown}; `prediction.to_frame()` has all rows and columns:")
        cut = ("...",) * (len(head.columns) > len(names))
        rows = [(*row, *cut) for row in zip(head.index, *(head[name].tolist() for name in names), strict=True)]
        return Summary(title, notes, rows, ("row", *names, *cut))

    def _axes_in_words(self) -> str:
        """Describe a row's axes, such as "10 classes"."""
        return f"rows of shape {tuple(self.expectation.shape[1:])}"

    def _uncertainty_in_words(self) -> str:
        """Return lines about the uncertainty, averaged over all rows."""
        return "uncertainty unknown"

    @abstractmethod
    def score(self, y: Tensor | None = None) -> dict[str, float]:
        """Return scores against targets, by name.

        Args:
            y: Targets, one row per input: a tensor, array, list or data frame; by default the targets passed to
                `predict`.

        Raises:
            ValueError: If there are no targets, or if they do not fit the prediction.
        """

    @abstractmethod
    def to_frame(self, *, index: Iterable[Any] | None = None) -> "pandas.DataFrame":
        """Return the prediction as a data frame with one row per input.

        With targets, the data frame has the columns ``target`` and ``log_density`` (in nats). With a single weight
        draw, it lacks the columns that need several draws.

        Args:
            index: Labels of the rows, such as the ``index`` of the data frame x; by default 0 to N - 1.

        Raises:
            ValueError: If the index does not have N labels.
        """

    def as_kind(self, kind: type[Q]) -> Q:
        """Return this prediction if it has the type `kind`; otherwise raise."""
        if not isinstance(kind, type) or not issubclass(kind, Prediction):
            raise ValueError(f"`kind` must be a class of predictions, got {_checks.described(kind)}.")
        if not isinstance(self, kind):
            raise ValueError(
                f"a {kind.__name__} is needed, got a {type(self).__name__}; use a model with another likelihood."
            )
        return self

    @property
    def nll(self) -> float:
        """Negative log predictive density in nats, averaged over the data; needs targets."""
        if self.log_density is None:
            raise ValueError("the NLL needs targets; call `predict(..., y=y)`.")
        return float(-self.log_density.mean())

    def __len__(self) -> int:
        return len(self.expectation)

    def __array__(self, *_: object, **__: object) -> NoReturn:
        raise TypeError("a prediction is not an array; pass one of its tensors, such as `prediction.expectation`.")

    def __getitem__(self: P, rows: int | Sequence[int] | np.ndarray | Tensor | slice) -> P:
        if isinstance(rows, str):
            raise TypeError(f"`prediction[...]` takes rows, got {rows!r}; {instead(type(self), rows)}.")
        index = _row_numbers(rows, len(self)).to(self.expectation.device)
        fields = vars(self).items()
        return type(self)(**{name: take(value, index, int(name in DRAWS_FIRST)) for name, value in fields})

    def _targets_for_score(self, y: Tensor | None) -> Tensor:
        if y is None and self.targets is None:
            raise ValueError("a score needs targets; call `score(y)`, or `predict(..., y=y)` first.")
        return as_targets("y", self.targets if y is None else y, self.expectation).to(self.expectation.device)

    def _has_density_of(self, y: Tensor) -> bool:
        """Return whether `log_density` is that of the targets y."""
        if self.log_density is None or self.targets is None:
            return False
        return torch.equal(y.to(self.targets), self.targets)


def require_variance(variance: Tensor | None) -> Tensor:
    """Return the variance. Raise if it is None, as for a single draw."""
    if variance is None:
        require_two(1)
    assert variance is not None
    return variance


def concatenate(predictions: Sequence[P]) -> P:
    """Join predictions of several batches, all made with the same draws of the weights."""
    first = predictions[0]
    if len(predictions) == 1:
        return first
    joined: dict[str, Any] = {}
    for name, value in vars(first).items():
        parts, data_axis = [getattr(p, name) for p in predictions], int(name in DRAWS_FIRST)
        if data_axis and any(part is None for part in parts):
            value = None
        elif isinstance(value, Tensor):
            value = torch.cat(parts, data_axis)
        elif isinstance(value, Distribution):
            value = join_distributions(parts, data_axis)
        joined[name] = value
    return type(first)(**joined)


def _row_numbers(rows: object, num_data: int) -> Tensor:
    with suppress(IndexError, TypeError, ValueError, RuntimeError):  # torch's own error messages about indices
        if isinstance(rows, slice):
            return torch.arange(num_data)[rows]
        values = None if isinstance(rows, tuple) else rows  # a tuple would mean several axes
        # torch refuses reversed arrays, and series with labels of their own
        index = values if isinstance(values, Tensor) else torch.as_tensor(np.array(values))
        if index.dim() == 1 or (index.dim() == 0 and index.dtype not in (torch.bool, torch.uint8)):
            return torch.arange(num_data)[(index.long() if index.dtype == torch.uint8 else index).cpu()].reshape(-1)
    got = f"{rows.dtype} of shape {_checks.shape(rows)}" if isinstance(rows, Tensor) else _checks.got(rows)
    kind = IndexError if isinstance(rows, int) else ValueError  # an `IndexError` ends a loop over the rows
    raise kind(
        f"rows of a prediction are chosen with a boolean mask of shape ({num_data},), a row number below {num_data}, a "
        f"vector of such numbers, or a slice of whole numbers with a step above 0, got {got}."
    )


class Sliced(ABC):
    """A distribution that selects and joins draws and rows itself, since its parameters have no axes for them."""

    @abstractmethod
    def taken(self, index: Tensor, dim: int) -> Distribution:
        """Return the selected draws (if `dim` is 0) or rows (if `dim` is 1)."""

    @abstractmethod
    def joined(self, others: Sequence[Any], dim: int) -> Distribution:
        """Concatenate `others`, of which the first is this distribution, along an axis."""


def join_distributions(distributions: Sequence[Distribution], dim: int) -> Distribution:
    """Concatenate distributions of one type along an axis."""
    first = distributions[0]
    if isinstance(first, Sliced):
        return first.joined(distributions, dim)
    parameters: dict[str, Any] = {
        name: torch.cat([getattr(d, name) for d in distributions], dim) for name in _names(first)
    }
    return type(first)(**parameters, validate_args=False)


def in_double(distribution: Distribution) -> Distribution:
    """Convert to double precision, in which variances do not overflow."""
    return move_distribution(distribution, distribution.mean.new_zeros((), dtype=torch.double))


def take(value: Any, index: Tensor, dim: int) -> Any:
    """Select elements along an axis of a tensor or distribution; leave any other object as it is."""
    if isinstance(value, Sliced):
        return value.taken(index, dim)
    if isinstance(value, Distribution):
        parameters = {name: getattr(value, name).index_select(dim, index) for name in _names(value)}
        return type(value)(**parameters, validate_args=False)
    return value.index_select(dim, index) if isinstance(value, Tensor) else value


def are_few(distribution: Distribution, num_predictions: int) -> bool:
    """Return whether the predictions of all draws have at most `MOST_KEPT` elements, and so are kept by default."""
    if not isinstance(distribution, Sliced) and not _found_names(distribution):
        return False
    sizes: Any = getattr(distribution, "param_shape", None)  # with the axis of classes
    shape = torch.Size(sizes or (*distribution.batch_shape, *distribution.event_shape))
    return num_predictions * shape[2:].numel() <= MOST_KEPT


def _found_names(distribution: Distribution) -> list[str]:
    """Return the names of the arguments from which a distribution was built; no names if it does not have them all."""
    names = [name for name in distribution.arg_constraints if name in vars(distribution)]
    _, *arguments = inspect.signature(type(distribution).__init__).parameters.values()  # without `self`
    needed = [argument.name for argument in arguments if argument.default is argument.empty]
    found = [name for name in names if name != "probs" or "logits" not in names]  # one may be computed from the other
    return found if {*needed} <= {*found} else []


def _names(distribution: Distribution) -> list[str]:
    names = _found_names(distribution)
    if not names:
        raise ValueError(
            f"`keep_draws` cannot store distributions of type {type(distribution).__name__}; leave `keep_draws` out."
        )
    return names


def frame(columns: Mapping[str, np.ndarray], num_rows: int, index: Iterable[Any] | None) -> "pandas.DataFrame":
    """Return a data frame with columns of shape (N,) and N labels of rows."""
    import pandas  # imported late: importing takes long

    if index is not None and not isinstance(index, pandas.Index | pandas.Series):
        index = _checks.items("index", index, "the labels of the rows, such as `frame.index`")
    labels = pandas.RangeIndex(num_rows) if index is None else pandas.Index(index)
    if len(labels) != num_rows:
        raise ValueError(f"`index` must have one label per row of the prediction, {num_rows}, got {len(labels)}.")
    return pandas.DataFrame(dict(columns), index=labels)


def by_output(column: str, values: Tensor, outputs: Sequence[str] | None) -> dict[str, np.ndarray]:
    """Split values ``(N, *O)`` into columns, whose names end in the output's name or number."""
    count = values.shape[1:].numel()
    flat = array(values).reshape(len(values), count)
    if outputs is not None:
        ends = [f"_{name}" for name in named("outputs", outputs, count)]
    else:
        ends = [""] if count == 1 else ["_" + "_".join(map(str, i)) for i in np.ndindex(*values.shape[1:])]
    return {column + end: flat[:, i] for i, end in enumerate(ends)}


def named(argument: str, names: Sequence[str], count: int) -> list[str]:
    """Return the names of classes or outputs, which must be `count` different ones."""
    found = [str(name) for name in _checks.items(argument, names, "a list of names")]
    if len(found) != count or len(set(found)) != count:
        raise ValueError(f"`{argument}` must be {count} different names, got {len(found)}: {found[:5]}.")
    return found


def array(values: Tensor) -> np.ndarray:
    """Return an array of at least single precision."""
    values = values.detach().cpu()
    return (values.float() if values.dtype in HALF else values).numpy()


@dataclass(frozen=True, repr=False)
class ValuePrediction(Prediction):
    """Mean and variance, over draws of the latent variables, of what your own Pyro model returns or observes.

    If the model returns a mean, `variance` is the epistemic part of the predictive variance. If the values are
    observations, one for each draw, `variance` is the total variance, and there is a log-density. Other arguments are
    those of :class:`Prediction`.

    Args:
        mean: Mean of the values, shape ``(N, *O)``.
        variance_of_values: Unbiased variance of the values over draws, shape ``(N, *O)``; None for a single draw.
        values: The values of each draw, shape ``(S, N, *O)``; None unless `keep_draws`.
    """

    mean: Tensor
    variance_of_values: Tensor | None
    values: Tensor | None

    @property
    def expectation(self) -> Tensor:
        return self.mean

    @property
    def variance(self) -> Tensor:
        """Unbiased variance over draws, shape ``(N, *O)``; needs at least two draws."""
        return require_variance(self.variance_of_values)

    def quantile(self, q: float | Sequence[float]) -> Tensor:
        """Return quantiles over draws, shape ``(N, *O)`` for one probability, and ``(Q, N, *O)`` for a list of Q.

        Args:
            q: One or several probabilities, strictly between 0 and 1.
        """
        if self.values is None:
            raise ValueError("quantiles need the values of all draws; call `predict(..., keep_draws=True)`.")
        return torch.quantile(self.values, levels_of(q).to(self.values), dim=0)

    def _uncertainty_in_words(self) -> str:
        if self.variance_of_values is None:
            return "one draw, so no uncertainty"
        return f"standard deviation over draws (root mean square) {float(self.variance.mean()) ** 0.5:.3g}"

    def score(self, y: Tensor | None = None) -> dict[str, float]:
        """Return the root mean squared error ``rmse``, and with a log-density of the targets the ``nll``."""
        y = self._targets_for_score(y)
        scores = {"rmse": metrics.root_mean_squared_error(self.mean, y)}
        return scores | ({"nll": self.nll} if self._has_density_of(y) else {})

    def to_frame(self, *, index: Iterable[Any] | None = None) -> "pandas.DataFrame":
        """Return a data frame with the columns ``mean`` and ``sd``."""
        columns = by_output("mean", self.mean, None)
        if self.variance_of_values is not None:
            columns |= by_output("sd", self.variance.sqrt(), None)
        if self.targets is not None:
            columns |= by_output("target", self.targets, None)
        if self.log_density is not None:
            columns["log_density"] = array(self.log_density)
        return frame(columns, len(self), index)
