"""A trained run with its test rows, for `evaluate` and `report`."""

import functools
from dataclasses import dataclass, field
from pathlib import Path

from torch import Tensor

from ...modelling.likelihoods import PoissonLikelihood
from ...modelling.model import BayesianModel
from ...results.prediction import predict, predict_point
from ...scores.uncertainty import Prediction
from .. import datasets, runs, sources
from ..config import RunConfig
from ..datasets import Dataset
from .baselines import baselines_of


@dataclass(frozen=True)
class Trained:
    """A trained run, its data, and settings of its predictions."""

    model: BayesianModel
    posterior: runs.RunPosterior
    rows: Dataset
    unknown: Tensor | None = None  # images unknown to the run, (M, H, W) with M >= 0; None for tables and arrays
    unknown_name: str = ""
    num_samples: int = 100  # weight draws in each prediction
    seed: int = 0  # of the weight draws
    calibration: runs.RunCalibration | None = None  # of its predictions, if rows were held out for it
    _ensembles: dict[tuple[int, bool], Prediction] = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def test(self) -> tuple[Tensor, Tensor]:
        """Inputs and targets of the test rows, on the device of the model."""
        return self.rows.x_test.to(self.model.device), self.rows.y_test.to(self.model.device)

    def ensemble(self, *, num_samples: int | None = None, keep_draws: bool = False) -> Prediction:
        """Predict the test rows by an average over weight draws. Equal calls predict only once."""
        count = num_samples or self.num_samples
        if (count, keep_draws) not in self._ensembles:
            x, y = self.test
            self._ensembles[count, keep_draws] = predict(
                self.model, self.posterior, x, y=y, num_samples=count, keep_draws=keep_draws, seed=self.seed
            )
        return self._ensembles[count, keep_draws]

    @functools.cached_property
    def single(self) -> tuple[str, Prediction]:
        """The name and the prediction of a single network: that of mean weights, or of one draw from chains.

        The mean of several modes would predict poorly.
        """
        x, y = self.test
        if runs.is_chains(self.posterior):
            return "one draw", predict_point(self.model, next(self.posterior.draws(1)), x, y=y)
        return "mean weights", predict_point(self.model, self.posterior.median(), x, y=y)

    @functools.cached_property
    def baselines(self) -> dict[str, Prediction]:
        """The name of each method without a network, and its prediction of the test rows."""
        return baselines_of(self.rows, is_count=isinstance(self.model.likelihood, PoissonLikelihood))


def load_trained(
    run: Path,
    config: RunConfig,
    ood: str | None,
    *,
    num_samples: int | None,
    seed: int,
    data: Path | None,
    download: bool,
    device: str,
) -> Trained:
    """Load a run and its rows. The arguments are the options of `pyro-bnn evaluate`."""
    rows: Dataset
    unknown, name = None, ""
    if config.kind == "images":
        rows, unknown, name = datasets.load_with_unknown(config, ood, root=data, download=download)
    elif ood is not None or download:
        raise ValueError("--ood and --download are for image sets; leave them out.")
    else:
        rows = sources.load(config, root=data, facts=runs.read_facts(run))
        if not len(rows.x_test):
            raise ValueError(
                "all rows were trained on (--test-fraction 0), so there are no test rows; for scores on new rows use "
                "`pyro-bnn predict`."
            )
    model, posterior = runs.load_run(run, rows, device=device)
    count, calibration = runs.num_draws(posterior, num_samples), runs.calibration_of(run, config)
    return Trained(model, posterior, rows, unknown, name, count, seed, calibration)
