"""The subject of a report: a run, with its predictions of the test rows and what was computed from them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas
import torch
from torch import Tensor

from ....inference.history import History
from ....inference.mcmc import Modes, modes_of_predictions
from ....modelling.likelihoods import PoissonLikelihood
from ....modelling.model import BayesianModel
from ....results.prediction import predict
from ....scores.uncertainty import ClassificationPrediction, RegressionPrediction
from ... import runs
from ...chains import Choice, Drift, drift
from ...config import RunConfig
from ...own.columns import Column
from ..calibrated import BeforeAndAfter, before_and_after, interval_of
from ..drivers import Drivers, Leak, columns_of, drivers_of, leak_of
from ..evaluation import Evaluation, evaluate_classifier
from ..scores import in_units
from ..trained import Alone, Trained

MOST_ROWS = 8  # test rows in the picture of chains


@dataclass(frozen=True)
class Classified:
    """The test rows of a classifier, and predictions of these rows."""

    y: Tensor  # labels of the test rows, (N,)
    classes: tuple[str, ...]
    noun: str  # word for one row, such as "image"
    test_name: str  # words for the test rows, such as "test images"
    evaluation: Evaluation
    baselines: Mapping[str, ClassificationPrediction]  # predictions without a network
    calibration: runs.RunCalibration | None = None
    target: str = ""  # name of the target; empty for image sets
    rows: Sequence[int] = ()  # number of each test row in its file, from 1; empty for image sets
    images: Tensor | None = None  # the test rows as grey images, (N, H, W), if they are images
    unknown: Tensor | None = None  # out-of-domain images, (M, H, W)
    unknown_name: str = ""
    is_linear: bool = False  # whether the network is a linear model

    @property
    def prediction(self) -> ClassificationPrediction:
        """The prediction that is an average over draws of the weights."""
        return self.evaluation.ensemble

    @property
    def single(self) -> tuple[str, ClassificationPrediction | Alone[ClassificationPrediction]]:
        """What the report calls single networks (such as "one draw"), and their predictions."""
        return self.evaluation.single

    @cached_property
    def before_and_after(self) -> BeforeAndAfter | None:
        """The coverage of sets of classes before and after calibration, if there is one."""
        if self.calibration is None:
            return None
        y = self.y.to(self.prediction.probs.device)
        return before_and_after(self.prediction, y, self.calibration, is_count=False)


@dataclass(frozen=True)
class Regressed:
    """The test rows of a regression, and predictions of these rows, in units of the target."""

    y: Tensor  # targets of the test rows, (N, O)
    names: tuple[str, ...]  # of the outputs
    prediction: RegressionPrediction  # with its components
    single: tuple[str, RegressionPrediction | Alone[RegressionPrediction]]  # name, and what one network predicts
    baselines: Mapping[str, RegressionPrediction]  # predictions without a network
    train_mean: Tensor  # mean of the training targets, (O,)
    train_scale: Tensor  # standard deviation of the training targets, (O,)
    train_least: Tensor  # smallest training target, (O,)
    is_count: bool
    calibration: runs.RunCalibration | None = None
    rows: Sequence[int] = ()  # number of each test row in its file, from 1
    leak: Leak | None = None  # columns from which a formula computes the target
    ignored: Sequence[str] = ()  # columns that the user left out
    is_linear: bool = False  # whether the network is a linear model

    @property
    def title(self) -> str:
        """The target in words."""
        return self.names[0] if len(self.names) == 1 else f"{len(self.names)} targets"

    @cached_property
    def before_and_after(self) -> BeforeAndAfter | None:
        """The coverage of intervals before and after calibration, if there is one."""
        if self.calibration is None:
            return None
        y = self.y.to(self.prediction.mean)
        return before_and_after(self.prediction, y, self.calibration, is_count=self.is_count)

    def squared_errors(self, mean: Tensor) -> Tensor:
        """Return the squared errors, shape (N, O), of predicted means, shape (N, O) or (O,)."""
        return (self.y - mean.to(self.y)).square()

    def interval(self, level: float) -> Tensor:
        """Return the ends of intervals, shape (2, N, O), corrected by the calibration if there is one."""
        return interval_of(self.prediction, level, self.calibration)


@dataclass(frozen=True)
class Subject:
    """The run that a report is about. Either `classified` or `regressed` has its predictions."""

    run: Path
    title: str
    config: RunConfig
    data: Mapping[str, str]  # the training and test data, in words
    num_samples: int  # draws of the weights in each prediction
    seed: int  # of the draws of the weights
    model: BayesianModel
    posterior: runs.RunPosterior
    asked: Mapping[str, Any] = field(default_factory=dict)  # options that the user gave to `train`
    classified: Classified | None = None
    regressed: Regressed | None = None
    drivers: Drivers | None = None  # effects of the columns
    history: History | None = None  # of a variational run, in the units of the target
    choice: Choice | None = None  # of the settings of chains
    num_columns: int = 0  # of the inputs, if their effects were asked for; 0 for images
    columns: Sequence[Column] = ()  # of the file; empty unless it is a table
    notes: Sequence[str] = ()  # on how the rows were processed
    inputs: pandas.DataFrame | None = None  # inputs of the test rows as in the file; None for images
    modes: Modes | None = None  # agreement of the predictions of training rows, within and between chains
    change: Drift | None = None  # of the predictions from the first to the second halves of the chains
    by_chain: tuple[Tensor, Tensor] | None = None  # a few test rows (R,), and what each chain predicts there (K, R)


def subject_of(run: Path, config: RunConfig, found: Trained, *, has_drivers: bool = True) -> Subject:
    """Predict the test rows of a run, and compute what its report shows.

    If `has_drivers` is True, also compute how much the predictions depend on each column.
    """
    rows, unknown = found.rows, found.unknown
    target, is_image = rows.facts.target, config.kind == "images"
    classified, regressed = None, None
    if target.is_class:
        noun = "image" if is_image else "row"
        classified = Classified(
            rows.y_test,
            rows.classes,
            noun,
            f"{'validation' if config.validation else 'test'} {noun}s",
            evaluate_classifier(found),
            {name: way.as_kind(ClassificationPrediction) for name, way in found.baselines.items()},
            calibration=found.calibration,
            target="" if is_image else target.name,
            rows=rows.test_rows,
            images=rows.x_test if is_image else None,
            unknown=unknown,
            unknown_name=found.unknown_name,
            is_linear=config.is_linear,
        )
    else:
        regressed = _regressed(found, config)
    if unknown is not None:
        title = f"A Bayesian classifier of {config.dataset}"
        about = {"unknown images": f"{len(unknown):,} images of {found.unknown_name}" if len(unknown) else "none"}
    else:
        kind = "classifier" if target.is_class else "regression"
        title = f"A Bayesian {kind} of {target.name} in {Path(config.dataset).name}"
        about = {"file": config.dataset}
    about |= {
        "training rows": f"{len(rows.x_train):,} of {' x '.join(map(str, rows.facts.input_shape))} inputs",
        **({} if rows.held_out is None else {"rows that calibrate": f"{len(rows.held_out[0]):,}"}),
        "test rows": f"{len(rows.x_test):,}",
        "classes": ", ".join(rows.classes),
        "checksum of the rows": f"SHA-256 {rows.facts.sha256}",
    }
    history, modes, change, by_chain = None, None, None, None
    if runs.is_chains(found.posterior):
        x_train = rows.x_train.to(found.model.device)  # `train` judges predictions of the same rows
        modes = modes_of_predictions(found.model, found.posterior.chains, x_train)
        change = drift(found.model, found.posterior, x_train)
        by_chain = _by_chain(found, classified or regressed)
    else:
        history = rows.facts.in_units(found.posterior.history)
    return Subject(
        run,
        title,
        config,
        about,
        found.num_samples,
        found.seed,
        found.model,
        found.posterior,
        found.asked,
        classified,
        regressed,
        drivers_of(found) if has_drivers else None,
        history,
        found.choice,
        num_columns=len(columns_of(found)) if has_drivers else 0,
        columns=rows.facts.columns if has_drivers else (),
        notes=rows.notes,
        inputs=rows.test_inputs,
        modes=modes,
        change=change,
        by_chain=by_chain,
    )


def _by_chain(run: Trained, measured: Classified | Regressed | None) -> tuple[Tensor, Tensor]:
    """Return the indices of a few test rows, shape (R,), and what each chain predicts for these rows, shape (K, R).

    For a regression, this is the mean of the first output. For a classifier, this is the probability of the class that
    is most probable in the average over all chains.
    """
    assert measured is not None
    assert runs.is_chains(run.posterior)
    prediction = measured.prediction
    size = prediction.mean[:, 0] if isinstance(prediction, RegressionPrediction) else prediction.max_probability
    order = size.argsort()
    chosen = order[torch.linspace(0, len(order) - 1, min(len(order), MOST_ROWS)).long()]
    if isinstance(prediction, RegressionPrediction):
        assert prediction.components is not None
        draws = prediction.components.mean[:, chosen, 0]  # (S, R)
    else:
        x = run.test[0][chosen]
        few = predict(run.model, run.posterior, x, num_samples=run.num_samples, keep_draws=True, seed=run.seed)
        logits = few.as_kind(ClassificationPrediction).logits
        assert logits is not None
        draws = logits[:, range(len(chosen)), prediction.labels[chosen]].exp()
    parts = draws.tensor_split(run.posterior.num_chains)  # draws come one chain after the other
    return chosen, torch.stack([part.mean(0) for part in parts])


def _regressed(run: Trained, config: RunConfig) -> Regressed:
    target = run.rows.facts.target
    name, one = run.single
    ensemble = in_units(run.ensemble.as_kind(RegressionPrediction), target)
    assert ensemble.targets is not None
    alone: RegressionPrediction | Alone[RegressionPrediction]
    if isinstance(one, Alone):
        alone = Alone([in_units(draw.as_kind(RegressionPrediction), target) for draw in one.draws])
    else:
        alone = in_units(one.as_kind(RegressionPrediction), target)
    y = ensemble.targets.double()
    mean, scale = (torch.tensor(part, dtype=torch.double, device=y.device) for part in (target.mean, target.scale))
    train = mean + scale * run.rows.y_train.to(y.device).double()
    return Regressed(
        y,
        (target.name,) if target.size == 1 else tuple(f"{target.name} {i + 1}" for i in range(target.size)),
        ensemble,
        (name, alone),
        {name: in_units(way.as_kind(RegressionPrediction), target) for name, way in run.baselines.items()},
        train_mean=train.mean(0),
        train_scale=train.std(0),
        train_least=train.amin(0),
        is_count=isinstance(run.model.likelihood, PoissonLikelihood),
        calibration=run.calibration,
        rows=run.rows.test_rows,
        leak=leak_of(run),
        ignored=config.ignore,
        is_linear=config.is_linear,
    )
