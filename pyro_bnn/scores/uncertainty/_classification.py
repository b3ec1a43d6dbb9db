"""Predictions in classification."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from ..._core import checks as _checks
from ..._core.summary import counted, share
from .. import metrics
from ._prediction import Prediction, array, by_output, frame, named, require_variance

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True, repr=False)
class ClassificationPrediction(Prediction):
    """Class probabilities averaged over draws of the weights, with aleatoric and epistemic uncertainty.

    With several yes-or-no outputs, the shape (N, C) below becomes ``(N, O, 2)``, and (N,) becomes ``(N, O)``. Other
    arguments are those of :class:`Prediction`.

    Args:
        probs: Mean class probabilities, shape (N, C).
        aleatoric: Expected entropy, in nats, shape (N,).
        votes: Number of draws in which each class is the most probable one, shape (N, C).
        mutual_information: Mutual information of label and weights, in nats, shape (N,); None for a single draw.
        variance_of_logits: Variance of the centred logits over draws, averaged over classes, shape (N,); None for a
            single draw. Centred logits have the mean 0 over classes.
        logits: Normalised log-probabilities of each draw, shape (S, N, C); None unless `keep_draws`.
        classes: Names of the C classes, in the order of `probs`; None for their numbers.

    Example:
        >>> import torch
        >>> import pyro_bnn as pb
        >>> net, prior = torch.nn.Linear(2, 3), pb.NormalPrior()
        >>> labels = pb.CategoricalLikelihood()
        >>> model = pb.BayesianModel(net, prior=prior, likelihood=labels, num_data=20)
        >>> guide = pb.MeanFieldGuide(model)
        >>> prediction = pb.predict(model, guide, torch.zeros(5, 2), seed=0)
        >>> prediction.probs.shape
        torch.Size([5, 3])
        >>> prediction.labels.shape, prediction.epistemic.shape
        (torch.Size([5]), torch.Size([5]))
    """

    probs: Tensor
    aleatoric: Tensor
    votes: Tensor
    mutual_information: Tensor | None
    variance_of_logits: Tensor | None
    logits: Tensor | None
    classes: Sequence[Any] | None = field(default=None, kw_only=True)

    @property
    def expectation(self) -> Tensor:
        return self.probs

    def _axes_in_words(self) -> str:
        classes = counted(self.probs.shape[-1], "class")
        return classes if self.probs.dim() == 2 else f"outputs of shape {tuple(self.probs.shape[1:-1])}, {classes}"

    def _uncertainty_in_words(self) -> str:
        entropy = f"mean entropy {float(self.total.mean()):.3g} nats"
        if self.mutual_information is not None:
            parts = [float(part.mean()) for part in (self.aleatoric, self.mutual_information)]
            entropy += " = aleatoric {} + epistemic {}".format(*(share(part, sum(parts)) for part in parts))
        return f"{entropy}; the most probable class has probability {float(self.max_probability.mean()):.3g} (mean)"

    @property
    def labels(self) -> Tensor:
        """Most probable class, shape (N,)."""
        return self.probs.argmax(-1)

    @property
    def total(self) -> Tensor:
        """Entropy of the mean probabilities, in nats, shape (N,): aleatoric plus epistemic."""
        return self.aleatoric if self.mutual_information is None else self.aleatoric + self.mutual_information

    @property
    def epistemic(self) -> Tensor:
        """Mutual information of label and weights, in nats, shape (N,); needs at least two draws."""
        return require_variance(self.mutual_information)

    @property
    def max_probability(self) -> Tensor:
        """Probability of the most probable class, shape (N,)."""
        return self.probs.max(-1).values

    @property
    def logit_variance(self) -> Tensor:
        """Variance of the centred logits over draws, averaged over classes, shape (N,); needs at least two draws."""
        return require_variance(self.variance_of_logits)

    def to_frame(
        self,
        *,
        classes: Sequence[str] | None = None,
        outputs: Sequence[str] | None = None,
        index: Iterable[Any] | None = None,
    ) -> "pandas.DataFrame":
        """Return the prediction as a data frame; see :meth:`Prediction.to_frame`.

        The columns are the most probable class, ``label``, the uncertainties ``total_nats``, ``aleatoric_nats`` and
        ``epistemic_nats``, and a probability for each class, such as ``prob_0``. With several outputs, each output has
        all these columns, whose names then end in the output's name or number.

        Args:
            classes: Names of the classes; by default :attr:`classes`.
            outputs: Names of several yes-or-no outputs; by default their numbers.
            index: Labels of the rows; by default 0 to N - 1.
        """
        num_classes = self.probs.shape[-1]
        own = range(num_classes) if self.classes is None else self.classes
        names = np.array(own if classes is None else named("classes", classes, num_classes))

        def of_labels(column: str, labels: Tensor) -> dict[str, np.ndarray]:
            return {name: names[values] for name, values in by_output(column, labels.long(), outputs).items()}

        columns = of_labels("label", self.labels)
        parts = {"total": self.total, "aleatoric": self.aleatoric, "epistemic": self.mutual_information}
        for name, value in parts.items():
            columns |= {} if value is None else by_output(f"{name}_nats", value, outputs)
        for c, probability in enumerate(self.probs.unbind(-1)):
            columns |= by_output(f"prob_{names[c]}", probability, outputs)
        if self.targets is not None:
            columns |= of_labels("target", self.targets)
        if self.log_density is not None:
            columns["log_density"] = array(self.log_density)
        return frame(columns, len(self), index)

    def score(self, y: Tensor | None = None) -> dict[str, float]:
        """Return scores of the mean probabilities against labels, shape (N,); see :meth:`Prediction.score`.

        These are ``accuracy``, ``nll`` (in nats per label), ``brier`` and ``ece`` (expected calibration error, 15
        bins). With several outputs, each output of a row is scored like a row of its own.
        """
        y = self._targets_for_score(y)
        expected = _checks.shape(self.probs)[:-1]
        if y.shape != expected:
            raise ValueError(
                f"`y` must have shape {expected}, one label per row of `probs`, got "
                f"{_checks.shape(y)}{_checks.reshaped(y, expected)}."
            )
        probs, labels = self.probs.flatten(0, -2), y.flatten()
        if self._has_density_of(y):  # finite even if a probability was rounded to 0
            nll = self.nll * len(y) / len(labels)
        else:
            nll = metrics.negative_log_likelihood(probs, labels)
        return {
            "accuracy": metrics.accuracy(probs, labels),
            "nll": nll,
            "brier": metrics.brier_score(probs, labels),
            "ece": metrics.expected_calibration_error(probs, labels),
        }
