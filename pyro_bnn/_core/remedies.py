"""Advice for names that users of other libraries expect, but that are missing here."""

import sys
from typing import TYPE_CHECKING, NoReturn

from .names import joined, nearest
from .signatures import explain_calls

FIT = "call `pyro_bnn.fit(model, (x, y))`"
PREDICT = "call `pyro_bnn.predict(model, posterior, x)`"
SCORE = "call `pyro_bnn.predict(model, posterior, x, y=y).score()`"
SAVE = "call `pyro_bnn.save_posterior(posterior, path, model)`"
PLOT = "call a function of `pyro_bnn.plotting`, such as"
DRAWS = "call `posterior.sample(num_samples)`, which returns a dictionary of draws"
MOMENTS = "call `posterior.moments()`, which returns the means and the standard deviations"
INTERVAL = "call `lower, upper = prediction.interval(0.9)`"
MEAN = "use `prediction.mean`"
LABELS = "use `prediction.labels`"
SD = "use `prediction.sd`, or its parts `aleatoric_sd` and `epistemic_sd`"
LOGITS = "use `prediction.logits`, which has each draw; if it is None, call `predict(..., keep_draws=True)`"
LOSSES = "call `pyro_bnn.plotting.loss_curves(posterior)`, or use `posterior.history`"
STATUS = "use `posterior.status.ok`, or call `print(posterior.status)`"
CONVERGENCE = "call `posterior.diagnose(model, x)`, which returns R-hat and effective sample sizes of chains"
STATED = "use `status.ok`, or call `print(status)`"
SAMPLE = "call `predict_distribution(X).sample(num_samples)`"
ROWS = "call `comparison.to_frame()`"
DISTRIBUTION = "call `predict_distribution(X)`"
SCORES = "call `prediction.score(y)`, which returns the scores by name"
WHOLE = f"{DISTRIBUTION}, which returns `total` uncertainty, and its parts `aleatoric` and `epistemic`"

INSTEAD_OF_NAMES = {
    **dict.fromkeys(["SVI", "VI", "BayesByBackprop"], 'call `fit(model, (x, y), method="svi")`'),
    "BNN": "`BNNRegressor`, `BNNClassifier` and `BayesianModel` are the networks",
    "GaussianPrior": "use `NormalPrior`",
    "evaluate": "call `predict(model, posterior, x, y=y).score()`",
    "fit_ensemble": 'call `fit(model, (x, y), method="ensemble")`',
    "fit_hmc": "call `fit_mcmc(model, (x, y), sampler=HMC(10))`",
    "fit_map": "call `fit(model, (x, y), guide=DeltaGuide(model))`",
    "fit_mclmc": 'call `fit(model, (x, y), method="mclmc")`',
    "fit_swag": "pass a `SWAG` to `fit_svi` as a callback",
    "infer": "call `fit(model, (x, y))`",
    **dict.fromkeys(["load", "load_model"], "call `load_posterior(path, model)`"),
    "mcmc": "call `fit_nuts(model, (x, y))`",
    "nuts": "call `fit_nuts(model, (x, y))`",
    "plot": "call a function of `plotting`, such as `plotting.regression_bands(x, prediction)`",
    "sample": "call `fit_nuts(model, (x, y))`",
    **dict.fromkeys(["save", "save_model"], "call `save_posterior(posterior, path, model)`"),
    "score": "call `predict(model, posterior, x, y=y).score()`",
    "train": "call `fit(model, (x, y))`",
}
"""Advice for names that the package lacks."""

INSTEAD = {
    "BayesianModel": {
        "evaluate": SCORE,
        "fit": FIT,
        "posterior": f"{FIT}, which returns the posterior",
        "predict": f"{PREDICT} with the posterior that `pyro_bnn.fit` returns",
        "predict_proba": f"{PREDICT}, whose result has `probs`",
        "sample": "call `pyro_bnn.fit_nuts(model, (x, y))` for draws from the posterior, or `model(x)` from the prior",
        "save": SAVE,
        "score": SCORE,
        "summary": "call `print(model)`",
    },
    "Posterior": {
        **dict.fromkeys(["converged", "ok"], STATUS),
        **dict.fromkeys(["ess", "r_hat", "rhat"], CONVERGENCE),
        **dict.fromkeys(["elbo", "loss", "losses"], LOSSES),
        **dict.fromkeys(["get_samples", "parameters", "params", "samples", "weights"], DRAWS),
        **dict.fromkeys(["forward", "predict", "predict_proba"], PREDICT),
        "load": "call `pyro_bnn.load_posterior(path, model)`",
        "mean": MOMENTS,
        "num_samples": "use `posterior.num_stored`, the number of stored draws (None if they are drawn on demand)",
        "plot": f"{PLOT} `loss_curves(posterior)`",
        "to": "call `model.to(device)` before the fit, or load a saved posterior with a model on the device",
        "save": SAVE,
        "score": SCORE,
        "std": MOMENTS,
        "stddev": MOMENTS,
        "summary": "call `print(posterior)`, or `posterior.diagnose(model)`",
        "variance": MOMENTS,
    },
    "Prediction": {
        **dict.fromkeys(["accuracy", "mse", "rmse"], SCORES),
        **dict.fromkeys(["ci", "conf_int", "confidence_interval", "lower", "upper"], INTERVAL),
        "numpy": "call `prediction.expectation.numpy()`, or `prediction.to_frame()` for all columns",
        "plot": f"{PLOT} `regression_bands` for numbers or `reliability_diagram` for classes",
        **dict.fromkeys(["draws", "samples"], "call `prediction.sample(num_samples)`"),
        "summary": "call `print(prediction)`",
        "weights": DRAWS,
    },
    "RegressionPrediction": {
        "aleatoric_std": "use `prediction.aleatoric_sd`",
        "epistemic_std": "use `prediction.epistemic_sd`",
        "confidence": INTERVAL,
        "entropy": f"a prediction of numbers has none; {SD}",
        "loc": MEAN,
        "median": "call `prediction.quantile(0.5)`",
        "noise": "use `prediction.aleatoric_sd`",
        **dict.fromkeys(["predictions", "values"], MEAN),
        **dict.fromkeys(["scale", "std", "stddev", "total_sd"], "use `prediction.sd`"),
        "uncertainty": SD,
        **dict.fromkeys(["var", "variance"], "use `prediction.total`, or its parts `aleatoric` and `epistemic`"),
        **dict.fromkeys(["argmax", "labels", "proba", "probs"], "a prediction of numbers has a `mean`"),
    },
    "ClassificationPrediction": {
        **dict.fromkeys(["mean", "proba", "prob", "probabilities", "probability"], "use `prediction.probs`"),
        **dict.fromkeys(["argmax", "label", "median", "mode", "predictions"], LABELS),
        "confidence": "use `prediction.max_probability`",
        **dict.fromkeys(["entropy", "uncertainty"], "use `prediction.total`, or its parts `aleatoric` and `epistemic`"),
        **dict.fromkeys(
            ["ci", "conf_int", "confidence_interval", "interval", "lower", "quantile", "upper"],
            "classes have no interval; `ConformalSets` gives sets of classes",
        ),
        **dict.fromkeys(["sd", "std", "stddev", "variance"], "use `prediction.total`, the entropy in nats"),
        "noise": "use `prediction.aleatoric`, in nats",
        **dict.fromkeys(["draws", "samples"], LOGITS),
    },
    "Status": {
        **dict.fromkeys(["converged", "is_ok", "success"], STATED),
    },
    "BNNEstimator": {
        **dict.fromkeys(["aleatoric", "epistemic", "predict_uncertainty", "predict_var", "uncertainty"], WHOLE),
        "coef_": "call `posterior_.moments()` after `fit`, which returns the means of the weights",
        "feature_importances_": "call `sklearn.inspection.permutation_importance(model, X, y)` after `fit`",
        "history": "use `posterior_.history` after `fit`",
        "load": "call `pickle.load(file)` on a file that `pickle.dump` wrote",
        "model": "use `model_` after `fit`",
        "posterior": "use `posterior_` after `fit`",
        "predict_std": "call `predict(X, return_std=True)`",
        "save": "call `pickle.dump(model, file)`",
        **dict.fromkeys(["converged", "converged_"], "use `posterior_.status.ok` after `fit`"),
        **dict.fromkeys(["status", "summary"], "use `status_` after `fit`"),
        **dict.fromkeys(["model_", "n_iter_", "posterior_"], "call `fit` first"),
        "weights": "call `posterior_.sample(num_samples)` after `fit`, which returns draws of the weights",
    },
    "ConformalIntervals": {
        "fit": "pass the prediction of held-out rows to the class: `ConformalIntervals(prediction, y)`"
    },
    "ConformalSets": {"fit": "pass the prediction of held-out rows to the class: `ConformalSets(prediction, y)`"},
    "Comparison": {
        "plot": "call `pyro_bnn.plotting.comparison(comparison)`",
        "summary": "call `print(comparison)`",
        **dict.fromkeys(["df", "frame", "numpy", "to_dict"], ROWS),
    },
    "BNNRegressor": {
        **dict.fromkeys(["predict_std", "sd", "std"], "call `predict(X, return_std=True)`"),
        "plot": "call `pyro_bnn.plotting.regression_bands(X, regressor.predict_distribution(X))`",
        "predict_proba": f"{DISTRIBUTION}, as a regressor has no classes",
        **dict.fromkeys(["predict_samples", "sample", "sample_y"], SAMPLE),
    },
    "BNNClassifier": {
        "decision_function": "call `predict_proba(X)`, or `predict_log_proba(X)` for logarithms",
        **dict.fromkeys(["entropy", "predict_entropy"], "use `predict_distribution(X).total`, the entropy in nats"),
        "plot": "call `pyro_bnn.plotting.reliability_diagram(classifier.predict_distribution(X), y)`",
        "predict_interval": "call `predict_set(X)`",
        "predict_std": f"{DISTRIBUTION}, which has the uncertainties of classes",
    },
}
"""Advice by class and missing attribute. Subclasses inherit the advice."""


def explain_errors(module: str) -> None:
    """Let errors about a public module's missing names suggest names, and errors about wrong calls show right ones."""
    found = sys.modules[module]
    for name in found.__all__:
        setattr(found, name, explain_calls(vars(found)[name]))

    def explained(name: str) -> NoReturn:
        plain = name.removeprefix("plot_")  # a prefix in other libraries
        near = nearest(plain, found.__all__, similar=0.6)
        hint = f"did you mean `{near}`?" if near else f"its names are {joined(found.__all__)}."
        public = f"pyro_bnn.{module.rpartition('.')[2]}"
        raise AttributeError(f"module '{public}' has no attribute '{name}'; {hint}", name=name)

    vars(found).pop("explain_errors", None)  # so that `dir` lists no helper
    vars(found)["__getattr__"] = explained  # at run time only, so that type checkers still report missing names


def advice_for(kind: type, name: str) -> str:
    """Return the advice for a missing attribute, or an empty text."""
    found = (INSTEAD.get(cls.__name__, {}).get(name) for cls in kind.__mro__)
    return next(filter(None, found), "")


def instead(kind: type, name: str) -> str:
    """Return advice for ``prediction[name]``."""
    if hasattr(kind, name) or name in getattr(kind, "__dataclass_fields__", {}):
        return f"use `prediction.{name}`"
    return advice_for(kind, name) or "call `prediction.to_frame()`, whose columns have names"


class Advised:
    """Base class whose errors about missing attributes give advice (:data:`INSTEAD`) or suggest a similar name."""

    if not TYPE_CHECKING:  # a type checker should still report missing attributes

        def __getattr__(self, name: str) -> object:
            try:
                return super().__getattr__(name) if hasattr(super(), "__getattr__") else self.__getattribute__(name)
            except AttributeError as error:
                advice = advice_for(type(self), name)
                hint = f"{advice}." if advice else None
                known = {*dir(type(self)), *vars(self)}  # not `dir(self)`, which may need what is missing
                if hint is None and name not in known and not name.startswith("_"):
                    near = nearest(name, sorted(one for one in known if not one.startswith("_")))
                    hint = f"did you mean `{near}`?" if near else None
                if hint is None:
                    raise
                # Without the object, Python adds no similar name, which might mean something else.
                message = f"'{type(self).__name__}' object has no attribute '{name}'; {hint}"
                raise AttributeError(message, name=name) from error
