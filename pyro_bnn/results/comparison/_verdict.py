"""The result of a comparison in words."""

import math
from collections.abc import Sequence

from ._scores import Scores


def in_words(pairs: Sequence[Scores]) -> str:
    """Return a line for each region: how far the closest method is from the reference, which is in all `pairs`."""
    reference, methods = pairs[0].reference, {pair.method for pair in pairs}
    regions = list(dict.fromkeys(pair.region for pair in pairs))
    lines = []
    for region in regions:
        score = "total variation" if "total variation" in pairs[0].scores else "wasserstein"
        closest = min((p for p in pairs if p.region == region), key=lambda pair: pair.scores[score].value)
        text = _in_words(closest)
        if len(methods) > 1:
            distance = f"{score} {closest.scores[score]}"
            text = f"{closest.method} is the closest of {len(methods)} methods to {reference} ({distance}). {text}"
        lines.append(f"{region}: {text}" if len(regions) > 1 else text)
    return "\n".join(lines)


def _in_words(pair: Scores) -> str:
    """Return a text which says how far the predictions of a method are from the predictions of the reference."""
    method, reference = pair.method, pair.reference
    scores = {name: estimate.value for name, estimate in pair.scores.items()}
    if "agreement" in scores:
        return (
            f"{method} and {reference} agree on the most probable class of {100 * scores['agreement']:.1f} % of the "
            f"points. Their probabilities differ by {scores['total variation']:.3f} (mean total variation)."
        )
    part = f"its epistemic part {scores['epistemic sd ratio']:.2f} times that of {reference}"
    if math.isinf(scores["epistemic sd ratio"]):
        part = f"{reference} has no epistemic part"
    return (
        f"The standard deviation of the predictions of {method} is {scores['total sd ratio']:.2f} times that of "
        f"{reference}, and {part}. Their means differ by {scores['rms mean difference']:.3g} (root mean square over "
        "points)."
    )
