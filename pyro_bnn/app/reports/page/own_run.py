"""A run on a table or on arrays as the subject of a report."""

from dataclasses import asdict
from pathlib import Path

import torch

from ....guides import GuidePosterior
from ....likelihoods import PoissonLikelihood
from ....model import BayesianModel
from ....prediction import predict
from ...config import RunConfig
from ...datasets import Dataset
from ...own.units import in_units
from ..evaluation import evaluate_classifier
from .commands import training_command
from .numbers import count
from .subject import Classified, Regressed, Subject, in_words

__all__ = ["own_subject"]


def own_subject(
    run: Path,
    config: RunConfig,
    model: BayesianModel,
    posterior: GuidePosterior,
    data: Dataset,
    *,
    num_samples: int,
    seed: int,
) -> Subject:
    """Measure a run on a table or on arrays.

    Args:
        run: Its folder.
        config: Its settings.
        model: Its model.
        posterior: Its posterior.
        data: Its data.
        num_samples: Number of weight draws in each prediction.
        seed: Seed of these draws.

    Raises:
        ValueError: If no rows were set aside to test on.
    """
    if not len(data.x_test):
        raise ValueError(
            "all rows were trained on (--test-fraction 0), so there are none to report on; see scores on new rows by "
            "`pyro-bnn predict`."
        )
    target = data.facts.target
    classified, regressed = None, None
    if target.is_class:
        evaluation = evaluate_classifier(model, posterior, data, None, num_samples=num_samples, seed=seed)
        classified = Classified(data.y_test, data.classes, "row", "test rows", evaluation)
    else:
        regressed = _regressed(model, posterior, data, num_samples=num_samples, seed=seed)
    kind = "classifier" if target.is_class else "regression"
    return Subject(
        run,
        title=f"A Bayesian {kind} of {target.name} in {Path(config.dataset).name}",
        settings=in_words(asdict(config)),
        data={
            "file": config.dataset,
            "training rows": f"{count(len(data.x_train))} of {' x '.join(map(str, data.facts.input_shape))} inputs",
            "test rows": count(len(data.x_test)),
            **({"classes": ", ".join(data.classes)} if target.is_class else {}),
            "checksum of the rows": f"SHA-256 {data.facts.sha256}",
        },
        command=training_command(config, run),
        device=str(model.device),
        num_samples=num_samples,
        seed=seed,
        model=model,
        posterior=posterior,
        classified=classified,
        regressed=regressed,
    )


def _regressed(
    model: BayesianModel, posterior: GuidePosterior, data: Dataset, *, num_samples: int, seed: int
) -> Regressed:
    target = data.facts.target
    x, y = data.x_test.to(model.device), data.y_test.to(model.device)
    standard = predict(model, posterior, x, y=y, num_samples=num_samples, keep_draws=True, seed=seed)
    prediction = in_units(standard.as_regression(), target)
    assert prediction.targets is not None
    mean, scale = (torch.tensor(part, dtype=torch.double, device=y.device) for part in (target.mean, target.scale))
    train = mean + scale * data.y_train.to(y.device).double()
    names = (target.name,) if target.size == 1 else tuple(f"{target.name} {i + 1}" for i in range(target.size))
    return Regressed(
        prediction.targets.double(),
        names,
        prediction,
        guess_mean=train.mean(0),
        guess_scale=train.std(0),
        is_count=isinstance(model.likelihood, PoissonLikelihood),
    )
