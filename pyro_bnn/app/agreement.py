"""Judges whether predictions agree with those of NUTS, even if the chains of NUTS have not converged."""

from torch import Tensor

from ..results.comparison import Comparison, Scores
from ..scores.uncertainty import ClassificationPrediction, Prediction, RegressionPrediction
from .beside import in_plain_names
from .reports.numbers import number

CLOSE_CLASSES, CLOSE_NUMBERS, CLOSE_SD = 0.05, 0.2, 0.1
"""Heuristic: predictions agree if their total variation, the difference of their means in total standard deviations,
and the difference of the ratio of the standard deviations from 1 are at most this large."""

FAR = 3  # heuristic: this multiple of the largest difference between chains of NUTS is beyond doubt


def agreement(result: Comparison, num_chains: int) -> str:
    """Say in sentences whether the second method of a comparison predicts like the first method, NUTS.

    More draws could change the result if the chains have not converged, so the text then tells how far they differ.
    """
    pair, nuts = result.pairs[0], next(iter(result.predictions.values()))
    name, distance, close = _distance(pair, nuts)
    between = _between_chains(nuts, num_chains)
    ratio = pair.scores.get("total sd ratio")
    is_close = distance <= close and (ratio is None or abs(ratio.value - 1) <= CLOSE_SD)
    chains = f"each chain of NUTS differs from the others by at most {number(between)}"
    if not result.status and not is_close and distance <= FAR * between:
        return (
            f"Not decided: the {name} between the run and NUTS is {number(distance)}, and a chain of NUTS differs from "
            f"the others by up to {number(between)}. So the chains of NUTS are too short to compare with."
        )
    if is_close and (result.status or between <= close):
        said = "The run predicts like NUTS."
    elif is_close:
        said = "The run predicts like all chains of NUTS together, but these chains do not agree yet."
    else:
        said = "The run does not predict like NUTS."
    doubt = "" if result.status else f" NUTS has not converged, but {chains} ({name})."
    differences = in_plain_names(result).differences
    return f"{said} {differences[0].upper()}{differences[1:]}{doubt}"


def _distance(pair: Scores, nuts: Prediction) -> tuple[str, float, float]:
    """Return the name and the value of the distance between two methods, and the largest distance of close methods."""
    if "total variation" in pair.scores:
        return "total variation", pair.scores["total variation"].value, CLOSE_CLASSES
    size = float(nuts.as_kind(RegressionPrediction).total.sqrt().median())
    return "root mean square difference of means", pair.scores["rms mean difference"].value, CLOSE_NUMBERS * size


def _between_chains(nuts: Prediction, num_chains: int) -> float:
    """Return the largest distance between the predictions of a chain and those of the other chains."""
    if isinstance(nuts, ClassificationPrediction):
        assert nuts.logits is not None
        chains = _means(nuts.logits.double().softmax(-1), num_chains)
        return float(max(0.5 * gap.abs().sum(-1).mean() for gap in _gaps(chains)))
    components = nuts.as_kind(RegressionPrediction).components
    assert components is not None
    return float(max(gap.square().mean().sqrt() for gap in _gaps(_means(components.mean.double(), num_chains))))


def _means(draws: Tensor, num_chains: int) -> Tensor:
    """Return the mean of each chain's draws, (K, N, ...), from the draws of one chain after the other, (S, N, ...)."""
    return draws.unflatten(0, (num_chains, -1)).mean(1)


def _gaps(chains: Tensor) -> Tensor:
    return (chains - chains.mean(0)) * len(chains) / (len(chains) - 1)  # from the mean of the other chains
