"""The estimators' defaults on tables beside scikit-learn's estimators: `python -m benchmarks.tables`.

Classes: five data sets, stratified splits with a fifth of the rows as test rows. `airfoil` and `bikesharing`: the
protocol of Sommer et al. (2025), with one split (`random_state=0`), several seeds, and scores in units of the
standardised target. Each fit adds one line to FOLDER/tables.jsonl; existing lines are not computed again.
"""

import os
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from sklearn.datasets import load_breast_cancer, load_digits, load_wine
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from sklearn.model_selection import GridSearchCV, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from pyro_bnn import BNNClassifier, BNNRegressor, metrics

from ._results import add_row, by_cell, cell_of, head_of, line_of, parser_of, processor_seconds, read_rows

CLASSIFIERS: dict[str, Callable[[int], Any]] = {
    "BNNClassifier()": lambda seed: BNNClassifier(random_state=seed),
    "BNNClassifier, svi": lambda seed: BNNClassifier(method="svi", random_state=seed),
    "BNNClassifier, laplace": lambda seed: BNNClassifier(method="laplace", random_state=seed),
    "logistic regression": lambda seed: make_pipeline(
        StandardScaler(),
        GridSearchCV(LogisticRegression(max_iter=2000), {"C": np.logspace(-4, 4, 10)}, scoring="neg_log_loss"),
    ),
    "random forest": lambda seed: RandomForestClassifier(500, random_state=seed),
    "histogram boosting": lambda seed: HistGradientBoostingClassifier(early_stopping=True, random_state=seed),
}

CLASS_SETS = ("heart", "australian", "breast cancer", "wine", "digits")

IGNORED = {"bikesharing": ["instant", "dteday", "casual", "registered"]}
"""Columns that the published protocol leaves out."""


def classes(name: str, folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """Inputs and labels of a data set."""
    if name in ("heart", "australian"):
        table = np.loadtxt(folder / "tables" / f"{name}.data")
        labels = table[:, -1].astype(int)
        return table[:, :-1], (labels > 0).astype(int) if name == "heart" else labels
    return {"breast cancer": load_breast_cancer, "wine": load_wine, "digits": load_digits}[name](return_X_y=True)


def classified(name: str, method: str, split: int, folder: Path) -> dict[str, Any]:
    """Scores of one fit to a split."""
    X, y = classes(name, folder)
    X_train, X_test, y_train, y_test = train_test_split(X, y, test_size=0.2, random_state=split, stratify=y)
    begin = processor_seconds()
    model = CLASSIFIERS[method](split).fit(X_train, y_train)
    probs = model.predict_proba(X_test)
    labels = torch.from_numpy(np.searchsorted(model.classes_, y_test))
    return {
        "nll": float(log_loss(y_test, probs, labels=model.classes_)),
        "accuracy": float((model.classes_[probs.argmax(1)] == y_test).mean()),
        "ece": metrics.expected_calibration_error(torch.from_numpy(probs), labels),
        "seconds": round(processor_seconds() - begin, 1),
        "status": getattr(model, "status_", ""),
    }


Gaussians = tuple[np.ndarray, np.ndarray]
"""Means and standard deviations of test targets, each of shape (N,)."""


def by_xgboost(x: np.ndarray, y: np.ndarray, x_test: np.ndarray, seed: int) -> Gaussians:
    """Means, and one standard deviation: that of the errors on a tenth of the rows, which also end training."""
    import xgboost

    x, x_held, y, y_held = train_test_split(x, y, test_size=0.1, random_state=seed)
    model = xgboost.XGBRegressor(
        n_estimators=5000, learning_rate=0.03, early_stopping_rounds=50, n_jobs=1, random_state=seed
    )
    model.fit(x, y, eval_set=[(x_held, y_held)], verbose=False)
    scale = np.sqrt(np.square(model.predict(x_held) - y_held).mean())
    return model.predict(x_test), np.full(len(x_test), scale)


def by_catboost(x: np.ndarray, y: np.ndarray, x_test: np.ndarray, seed: int) -> Gaussians:
    """A Gaussian at each row."""
    import catboost

    x, x_held, y, y_held = train_test_split(x, y, test_size=0.1, random_state=seed)
    options = {"loss_function": "RMSEWithUncertainty", "posterior_sampling": True, "thread_count": 1}
    model = catboost.CatBoostRegressor(iterations=2000, random_seed=seed, allow_writing_files=False, **options)
    model.fit(x, y, eval_set=(x_held, y_held), verbose=False)
    mean, variance = model.predict(x_test).T
    return mean, np.sqrt(variance)


def by_ngboost(x: np.ndarray, y: np.ndarray, x_test: np.ndarray, seed: int) -> Gaussians:
    """A Gaussian at each row."""
    import ngboost

    x, x_held, y, y_held = train_test_split(x, y, test_size=0.1, random_state=seed)
    model = ngboost.NGBRegressor(n_estimators=3000, learning_rate=0.03, random_state=seed, verbose=False)
    found = model.fit(x, y, X_val=x_held, Y_val=y_held, early_stopping_rounds=50).pred_dist(x_test)
    return found.params["loc"], found.params["scale"]


def by_bde(members: int, warmup: int, samples: int) -> Callable[..., Gaussians]:
    """The package of the published table, with its network and its numbers of members and steps."""

    def fit(x: np.ndarray, y: np.ndarray, x_test: np.ndarray, seed: int) -> Gaussians:
        import bde

        model = bde.BdeRegressor(
            n_members=members,
            hidden_layers=[16] * 4,
            seed=seed,
            epochs=1000,
            patience=25,
            warmup_steps=warmup,
            n_samples=samples // 10,
            n_thinning=10,
        )
        mean, scale = model.fit(x.astype(np.float32), y.astype(np.float32)).predict(
            x_test.astype(np.float32), mean_and_std=True
        )
        return mean, scale

    return fit


OTHER_PACKAGES: dict[str, Callable[..., Gaussians]] = {
    "XGBoost": by_xgboost,
    "CatBoost": by_catboost,
    "NGBoost": by_ngboost,
    "sklearn-contrib-bde, 4 x 6,000": by_bde(4, 5000, 1000),
    "sklearn-contrib-bde, 10 x 51,000": by_bde(10, 50_000, 1000),
}
"""Regression by other packages, without tuning. They must be installed, and run only if they are named."""

USUAL = (*CLASSIFIERS, "BNNRegressor()")
MOST_SEEDS = 5


def by_default(
    x: np.ndarray, y: np.ndarray, x_test: np.ndarray, y_test: np.ndarray, seed: int, limit: float | None
) -> tuple[Gaussians, dict[str, Any]]:
    """Our mean and standard deviation of each row, with the mixture's score and what was chosen."""
    model = BNNRegressor(random_state=seed, time_limit=limit).fit(x, y)
    prediction = model.predict_distribution(x_test)
    density = float(prediction.log_prob(torch.from_numpy(y_test[:, None])).mean())
    moments = prediction.mean[:, 0].numpy(), prediction.total.sqrt()[:, 0].numpy()
    return moments, {"mixture nll": -density, "status": model.status_}


def regressed(name: str, method: str, seed: int, folder: Path, limit: float | None) -> dict[str, Any]:
    """Scores in the published protocol; `nll` is the NLL of the Gaussian with the mixture's moments."""
    frame = pd.read_csv(folder / "tables" / f"{name}.csv").drop(columns=IGNORED.get(name, []))
    train, test = train_test_split(frame.to_numpy(), test_size=0.2, random_state=0)
    scaler = StandardScaler().fit(train)
    train, test = scaler.transform(train), scaler.transform(test)
    (x, y), (x_test, y_test) = ((rows[:, :-1], rows[:, -1]) for rows in (train, test))
    begin, begin_cpu = time.perf_counter(), processor_seconds()
    if method in OTHER_PACKAGES:
        moments, found = OTHER_PACKAGES[method](x, y, x_test, seed), {}
    else:
        moments, found = by_default(x, y, x_test, y_test, seed, limit)
    seconds, cpu = time.perf_counter() - begin, processor_seconds() - begin_cpu
    mean, scale = (torch.from_numpy(np.asarray(each, float)) for each in moments)
    target = torch.from_numpy(y_test)
    return {
        "rmse": float((mean - target).square().mean().sqrt()),
        "nll": -float(torch.distributions.Normal(mean, scale).log_prob(target).mean()),
        "seconds": round(seconds, 1),
        "cpu seconds": round(cpu, 1),
        **found,
    }


def table(rows: list[dict[str, Any]], columns: list[str]) -> Iterator[str]:
    """Means over splits or seeds with their standard errors, a line for each method and data set."""
    yield from head_of(["data set", "method", "runs", *columns], 2)
    for (name, method), some in by_cell(rows).items():
        found = (cell_of([float(row[column]) for row in some if column in row], 3) for column in columns)
        yield line_of([name, method, str(len(some)), *found])


def main() -> None:
    parser = parser_of("tables", __doc__)
    parser.add_argument(
        "--data",
        type=Path,
        default=os.environ.get("PYRO_BNN_DATA", "data"),
        help="folder that contains tables/; default $PYRO_BNN_DATA",
    )
    parser.add_argument("--datasets", nargs="+", default=[*CLASS_SETS, "airfoil", "bikesharing"], metavar="NAME")
    parser.add_argument("--methods", nargs="+", default=USUAL, choices=[*USUAL, *OTHER_PACKAGES], metavar="NAME")
    parser.add_argument("--runs", type=int, default=10, help="splits for classes; the others have at most five")
    parser.add_argument("--time-limit", type=float, help="time limit for airfoil and bikesharing, in seconds")
    options = parser.parse_args()
    warnings.simplefilter("ignore", ConvergenceWarning)  # the row has the status
    folder, file = options.data, options.out / "tables.jsonl"
    for run in range(options.runs):
        for name in options.datasets:
            is_classes = name in CLASS_SETS
            if run >= (options.runs if is_classes else MOST_SEEDS):
                continue
            for method in options.methods:
                if (method in CLASSIFIERS) != is_classes:
                    continue
                done = {(row["dataset"], row["method"], row["run"]) for row in read_rows(file)}
                if (name, method, run) in done:
                    continue
                if is_classes:
                    found = classified(name, method, run, folder)
                else:
                    found = regressed(name, method, run, folder, options.time_limit)
                add_row(file, {"dataset": name, "method": method, "run": run, **found})
                print(f"# {name} {run} {method}: {found}", flush=True)
    rows = read_rows(file)
    print(*table([row for row in rows if "accuracy" in row], ["nll", "accuracy", "ece", "seconds"]), sep="\n")
    print()
    shown = ["rmse", "nll", "mixture nll", "seconds", "cpu seconds"]
    print(*table([row for row in rows if "rmse" in row], shown), sep="\n")


if __name__ == "__main__":
    main()
