"""The base class of the estimators."""

import copy
import re
import secrets
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
import torch
from scipy.sparse import issparse
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import StandardScaler
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_array, check_is_fitted, validate_data
from torch import Tensor, nn

from ... import nets
from ..._core import checks as _checks
from ..._core.names import nearest
from ..._core.remedies import Advised
from ..._core.scope import outer_stacklevel, seeded, warn_of_fit
from ..._core.summary import ALARM, Summary, as_html, counted, few, in_lines
from ...auto.choosing import ACTIVATIONS, FEWEST_COMPARED, Deadline, Design, open_designs
from ...inference.posterior import Posterior, Status, default_num_draws
from ...modelling.likelihoods import Likelihood
from ...modelling.model import BayesianModel
from ...modelling.priors import FanInNormalPrior
from ...results.calibration import set_aside
from ...results.prediction import predict
from ...scores.uncertainty import Prediction
from ._methods import METHODS, PARTIAL, USED_BY, Settings, Task, check_settings
from ._remedies import of_estimator

DEFAULT = Design((20,), nn.Tanh, FanInNormalPrior(2.0), "gaussian")
"""Heuristic: design of all methods but "auto", chosen for NUTS on validation rows of UCI tables (docs/results)."""

DTYPE = torch.float64  # NumPy's default type, whose precision Markov chains need

HINTS = {"device": "estimators compute on the CPU; for a GPU, call `fit` with a BayesianModel"}
SIZES = "a number of units, or a list of numbers such as (50, 50)"  # what `hidden_layer_sizes` may be
MOST_STORED = 800  # heuristic: most draws of chains in a prediction; posteriors with several modes need many

NOT_NUMBERS = ("convert string to float", "could not be promoted", "float() argument")  # errors about text or dates
ISO_DATE = r"\d{4}-\d\d-\d\d([ T].*)?"  # and a time, if there is one
MOST_NAMED = 10  # heuristic: an error lists at most this many columns in its example code
LARGEST_SEED = 2**31 - 1  # seeds that are drawn are below this number, as in scikit-learn
FINE = "color: #2a9d4a; font-weight: bold"  # this green can be read on white and on black

OF_FIT = "font-family: sans-serif; font-size: 0.9em; margin: 0.4em 0"  # of the line below scikit-learn's HTML

Self = TypeVar("Self", bound="BNNEstimator")
P = TypeVar("P", bound=Prediction)


class BNNEstimator(Advised, Settings):
    """Base class: a network with a posterior over its weights, fitted to a table."""

    model_: BayesianModel
    posterior_: Posterior
    _units: tuple[Tensor, Tensor]  # mean and scale of the inputs
    _design: Design  # of the first part of the data
    _calibration: Any = None  # conformal intervals or sets, if rows were held out

    @contextmanager
    def _fitting(self, *, is_next: bool = False) -> Iterator[None]:
        """Make the estimator unfitted if an error ends the `with` block, unless earlier data were fitted."""
        try:
            yield
        except BaseException:
            for name in [name for name in vars(self) if name.endswith("_") and not is_next]:
                delattr(self, name)
            raise

    def _validated(self, X: Any, *targets: Any, is_next: bool, **options: Any) -> Any:
        """Return checked inputs, (N, D), and targets if given. `is_next` says whether earlier data were fitted."""
        options |= {"ensure_min_samples": 1 if is_next else 2, "reset": not is_next}
        try:
            found = validate_data(self, X, *targets, dtype=np.float64, accept_sparse="csr", **options)
        except (TypeError, ValueError) as error:
            if problem := _wrong_shape(str(error), X, *targets):
                raise ValueError(problem) from None
            if "NaN" in str(error) or "infinity" in str(error):
                named = [("X", X), *(("y", y) for y in targets)]
                problems = [_not_finite(name, values, type(self).__name__) for name, values in named]
                if any(problems):
                    raise ValueError(" ".join(filter(None, problems))) from None
            if any(said in str(error) for said in NOT_NUMBERS) and (problem := _not_numbers(X, type(self).__name__)):
                raise ValueError(problem) from error
            raise
        return (_dense(found[0]), found[1]) if targets else _dense(found)

    def _is_next(self) -> bool:
        """Return whether an earlier part was fitted; raise if `method`, or the earlier fit, cannot be continued."""
        if self.method not in PARTIAL:
            names = ", ".join(map(repr, PARTIAL))
            raise ValueError(f"`method` must be one of {names} for `partial_fit`, got {self.method!r}.")
        if not hasattr(self, "posterior_"):
            return False
        if not self.posterior_.guides:
            raise ValueError(
                f"`partial_fit` must continue a variational fit, got an estimator fitted by {self.posterior_.method}; "
                'call it on a new estimator, `sklearn.base.clone(estimator)`, or fit with `method="svi"`.'
            )
        return True

    @staticmethod
    def _weights(sample_weight: Any, num_rows: int) -> tuple[np.ndarray, np.ndarray | None]:
        """Return the rows with a weight above 0, and their weights (None without `sample_weight`)."""
        if sample_weight is None:
            return np.arange(num_rows), None
        weights = check_array(sample_weight, ensure_2d=False, dtype=np.float64, input_name="sample_weight")
        if weights.shape != (num_rows,) or (weights < 0).any():
            raise ValueError(
                f"`sample_weight` must be {num_rows} numbers of at least 0, one for each row, got shape "
                f"{weights.shape} and a smallest value of {weights.min():g}."
            )
        if not weights.any():
            raise ValueError(
                "`sample_weight` must have a weight above 0, got all zero; leave it out for equal weights."
            )
        (rows,) = np.nonzero(weights)
        return rows, weights[rows]

    def _designs(self, choices: Sequence[Design], default: str, likelihood: str | None = None) -> list[Design]:
        """Return the designs to compare, with the user's own settings. Methods other than "auto" have one design."""
        _checks.one_of("method", self.method, [*METHODS])
        hidden, activation = self.hidden_layer_sizes, self.activation
        if isinstance(activation, str):
            if activation not in ACTIVATIONS:
                names = ", ".join(map(repr, ACTIVATIONS))
                near = nearest(activation, ACTIVATIONS, similar=0.6)
                hint = f"; did you mean {near!r}?" if near else "."
                raise ValueError(f"`activation` must be {names} or a function that makes one, got {activation!r}{hint}")
            activation = ACTIVATIONS[activation]
        if hidden is not None:
            sizes: list[Any] = (
                [hidden] if _checks.is_number(hidden) else _checks.items("hidden_layer_sizes", hidden, SIZES)
            )
            hidden = tuple(_checks.at_least("hidden_layer_sizes", size, 1) for size in sizes)
        choices = choices if self.method == "auto" else [replace(DEFAULT, likelihood=default)]
        return open_designs(choices, hidden=hidden, activation=activation, prior=self.prior, likelihood=likelihood)

    def _fit(
        self: Self,
        x: Tensor,
        y: Tensor,
        weights: np.ndarray | None,
        designs: Sequence[Design],
        likelihoods: Mapping[str, Likelihood],
        num_targets: int,
        classes: np.ndarray | None = None,
        *,
        is_part: bool = False,
        is_next: bool = False,
    ) -> Self:
        """Fit to x and y: standardised targets, shape (N, O), or labels, shape (N,) or (N, L)."""
        name = PARTIAL[self.method] if is_part else self.method
        check_settings(self, name)
        rows, held_out = self._split(len(x), classes, name)
        start = self.posterior_ if is_next else None
        if len(rows) < FEWEST_COMPARED and not is_part:
            few = f"there are only {counted(len(rows), 'row')} to fit, so predictions depend strongly on the prior."
            warnings.warn(few, UserWarning, stacklevel=outer_stacklevel())
        if not is_next:
            self._units = standard_units(x[rows], None if weights is None else weights[rows])
        targets = y
        if weights is not None:
            likelihoods = {name: likelihood.with_row_weights() for name, likelihood in likelihoods.items()}
            targets = next(iter(likelihoods.values())).join_weights(y, torch.from_numpy(weights))

        def build(design: Design, seed: int, num_rows: int) -> BayesianModel:
            likelihood = copy.deepcopy(likelihoods[design.likelihood])
            with seeded(seed):
                first = nets.Standardize(*self._units)
                sizes = [x.shape[1], *design.hidden, likelihood.num_outputs(num_targets)]
                net = nets.mlp(sizes, activation=design.activation, first=[first]).to(DTYPE)
            prior = design.prior if start is None else start.as_prior()
            return BayesianModel(net, prior=prior, likelihood=likelihood, num_data=num_rows)

        held = None if held_out is None else (x[held_out], targets[held_out])
        fitted = METHODS[name](
            Task(self, designs, build, (x[rows], targets[rows]), held, self._seed, start, self._deadline)
        )
        self.model_, self.posterior_, self.n_iter_ = fitted.model, fitted.posterior, fitted.num_iterations
        self._calibration = None
        if not self.posterior_.status:
            warn_of_fit(self._status.warning("status_"), ConvergenceWarning)
        return self

    def _set_aside(self, num_rows: int, unfit: Mapping[str, bool]) -> tuple[list[int], list[int] | None]:
        """Draw the seed. Return the rows for the fit, and those for calibration, which are None without calibration."""
        self._seed = self._drawn_seed()
        self._deadline = Deadline.after(self.time_limit) if self.method == "auto" else None
        fraction = self.calibration_fraction
        if fraction is None:
            return [*range(num_rows)], None
        if given := [situation for situation, is_given in unfit.items() if is_given]:
            raise ValueError(
                f"`calibration_fraction` must be None {given[0]}, got {fraction!r}; leave it out, or calibrate by "
                "`pyro_bnn.calibration`."
            )
        return set_aside("calibration_fraction", num_rows, fraction, self._seed)

    def _drawn_seed(self) -> int:
        if self.random_state is None:
            return secrets.randbelow(LARGEST_SEED)  # numpy's global generator is not changed
        try:
            return int(check_random_state(self.random_state).randint(LARGEST_SEED))
        except ValueError:
            expected = "a whole number from 0 to 2**32 - 1, a `numpy.random.RandomState` or None"
            raise ValueError(f"`random_state` must be {expected}, got {_checks.got(self.random_state)}.") from None

    def _split(self, num_rows: int, classes: np.ndarray | None, method: str) -> tuple[np.ndarray, np.ndarray | None]:
        """Return the rows for the fit, and those for early stopping, which are None without early stopping."""
        rows = np.arange(num_rows)
        if not self.early_stopping or method not in USED_BY["early_stopping"]:
            return rows, None
        share = self.validation_fraction
        train, held_out = train_test_split(rows, test_size=share, random_state=self._seed, stratify=classes)
        return np.sort(train), np.sort(held_out)

    def _prediction(self, X: Any, kind: type[P], *, keep_draws: bool) -> P:
        """Return the prediction for a table, with the same draws at every call."""
        check_is_fitted(self)
        return self._predicted(self._validated(X, is_next=True), keep_draws=keep_draws).as_kind(kind)

    def _predicted(self, inputs: Tensor, *, keep_draws: bool) -> Prediction:
        stored = self.posterior_.num_stored
        if self.num_samples is None:
            num_samples = default_num_draws(self.model_, self.posterior_, most_stored=MOST_STORED)
        else:
            wanted = _checks.at_least("num_samples", self.num_samples, 2)  # it may have changed since the fit
            num_samples = wanted if stored is None else min(wanted, stored)
        options: dict[str, Any] = {"num_samples": num_samples, "keep_draws": keep_draws, "seed": self._seed}
        return predict(self.model_, self.posterior_, inputs, **options)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags

    def __str__(self) -> str:
        fit = self._fit_summary()
        return repr(self) if fit is None else f"{self!r}\n{fit.text()}"

    def _repr_html_inner(self) -> str:
        return f"{super()._repr_html_inner()}{self._fit_as_html()}"

    def _repr_mimebundle_(self, **options: Any) -> dict[str, str]:
        bundle: dict[str, str] = super()._repr_mimebundle_(**options)
        if "text/html" in bundle:
            bundle["text/html"] += self._fit_as_html()
        return bundle

    def _fit_as_html(self) -> str:
        fit = self._fit_summary()
        if fit is None:
            return ""
        status = self._status
        style, said = (FINE, status.label) if status else (ALARM, f"{status.label}: {status.finding}")
        line = f'{as_html(fit.title)}, <strong style="{style}">{as_html(said)}</strong>'
        facts = "".join(f"<div>{as_html(note)}</div>" for note in fit.notes)
        return f'<details style="{OF_FIT}"><summary>{line}</summary>{facts}</details>'

    def _fit_summary(self) -> Summary | None:
        """Return a summary of the network and the status; None before a fit."""
        if "posterior_" not in vars(self):
            return None
        layers = [layer for layer in self.model_.network.modules() if isinstance(layer, nn.Linear)]
        units = " + ".join(str(layer.out_features) for layer in layers[:-1]) or "no"
        network = f"{counted(self.n_features_in_, 'input')}, {units} hidden units"
        notes = [
            f"network: {network}, prior {self.model_.prior!r}, likelihood {self.model_.likelihood!r}",
            f"{self._status.label}: {self._status}",
        ]
        return Summary(f"Fit: {self.posterior_.method}", notes)

    @property
    def status_(self) -> str:
        """How the fit ended, and what to try if it failed. Each sentence is on its own line."""
        check_is_fitted(self)
        return in_lines(str(self._status))

    @property
    def _status(self) -> Status:
        return of_estimator(self.posterior_.status)


def _wrong_shape(said: str, X: Any, *targets: Any) -> str:
    """If scikit-learn's message is about wrong shapes, return a clearer one; otherwise an empty text."""
    shape = np.shape(X) if "Expected" in said or "Found array with dim" in said else (0, 0)
    if not shape:
        return f"`X` must be a table of shape (N, D), got {_checks.described(X)}; pass an array, or a data frame."
    if len(shape) > 2:
        return f"`X` must be a table of shape (N, D), got shape {shape}; pass `np.reshape(X, (len(X), -1))`."
    if len(shape) == 1:
        of_series = "X.to_frame()", "X.to_frame().T"
        column, row = of_series if hasattr(X, "to_frame") else ("np.reshape(X, (-1, 1))", "np.reshape(X, (1, -1))")
        return (
            f"`X` must be a table of shape (N, D), got shape {shape}. Reshape your data: `{column}` is a table "
            f"of one column, and `{row}` a table of one row."
        )
    if targets and "inconsistent numbers of samples" in said:
        rows, found = (value.shape[0] if hasattr(value, "shape") else len(value) for value in (X, targets[0]))
        return (
            f"`y` must have one target for each row of `X`, got {found} targets for {rows} rows; pass X and y of the "
            "same rows."
        )
    return ""


def _not_finite(name: str, values: Any, estimator: str) -> str:
    """Return a message about missing or infinite numbers, or an empty text."""
    try:
        if hasattr(values, "isna"):  # of pandas, in which a gap may be `pandas.NA`
            numbers = values.to_numpy(dtype=np.float64, na_value=np.nan)
        else:
            numbers = np.asarray(values.toarray() if issparse(values) else values, dtype=np.float64)
    except (TypeError, ValueError):  # texts
        return ""
    is_bad = ~np.isfinite(numbers)
    if not is_bad.any():
        return ""
    rows = is_bad.reshape(len(is_bad), -1).any(1)
    what = "NaN" if np.isnan(numbers[is_bad]).all() else "NaN or inf" if np.isnan(numbers).any() else "inf"
    places: list[int] = np.flatnonzero(is_bad.any(0)).tolist() if is_bad.ndim == 2 else []
    columns = [f"`{values.columns[i]}`" if hasattr(values, "columns") else f"column {i}" for i in places]
    found = f"{what} in {rows.sum()} of {len(rows)} rows{f', in {few(columns)}' if columns else ''}"
    remedy = "drop these rows"
    if name == "X":
        before = "" if what == "NaN" else "replace inf by NaN, and then "
        pipeline = f"`make_pipeline(SimpleImputer(add_indicator=True), {estimator}())`"
        remedy += f", or {before}fill the gaps in a pipeline: {pipeline}. `pyro-bnn train` fills gaps by itself"
    return f"`{name}` must be finite, got {found}; {remedy}."


def _not_numbers(X: Any, estimator: str) -> str:
    """Return a message about columns of text or dates, or an empty text."""
    cells = np.asarray(X, dtype=object)
    if cells.ndim != 2:
        return _wrong_shape("Expected", X)
    has_names = hasattr(X, "columns")
    texts, dates, has_gaps = [], [], False
    for name, column in zip(X.columns if has_names else range(cells.shape[1]), cells.T, strict=True):
        try:
            has_gaps |= bool(np.isnan(column.astype(np.float64)).any())
        except (TypeError, ValueError):
            days = [hasattr(cell, "isoformat") or bool(re.fullmatch(ISO_DATE, str(cell))) for cell in column]
            if any(isinstance(cell, str) and not is_day for cell, is_day in zip(column, days, strict=True)):
                texts.append(name)
            elif any(days):
                dates.append(name)
                has_gaps |= not all(days) or "NaT" in map(str, column)
    remedies = []
    if dates:
        part = "X[name]" if has_names else "X[:, name]"
        loop = f"for name in {dates if len(dates) <= MOST_NAMED else 'date_columns'}: {part}"
        remedies.append(f"turn dates into days: `{loop} = pd.DatetimeIndex({part}).to_julian_date() - 2.45e6`")
    if texts:
        chosen = texts if len(texts) <= MOST_NAMED else "text_columns"
        others = "SimpleImputer(add_indicator=True)" if has_gaps else "'passthrough'"
        columns = f"(OneHotEncoder(handle_unknown='ignore'), {chosen}), remainder={others}"
        remedies.append(f"encode text: `make_pipeline(make_column_transformer({columns}), {estimator}())`")
    got = " and ".join(
        f"{kind} in {few(f'`{name}`' if has_names else f'column {name}' for name in found)}"
        for kind, found in (("dates", dates), ("text", texts))
        if found
    )
    of_skrub = f"`tabular_pipeline({estimator}())` of the package skrub"
    remedy = f"{', and '.join(remedies)}. {of_skrub} and `pyro-bnn train` encode text and dates by themselves."
    return f"`X` must be numbers, got {got}; {remedy}" if remedies else ""


def _dense(inputs: Any) -> Tensor:
    """Convert inputs to a dense tensor, since they would not stay sparse when standardised."""
    return torch.tensor(inputs.toarray() if issparse(inputs) else inputs, dtype=DTYPE)


def standard_units(values: Tensor, weights: np.ndarray | None) -> tuple[Tensor, Tensor]:
    """Return the columns' weighted means and standard deviations. A constant column gets the standard deviation 1."""
    scaler = StandardScaler().fit(values.numpy(), sample_weight=weights)
    return torch.from_numpy(scaler.mean_).to(values), torch.from_numpy(scaler.scale_).to(values)
