"""The report's section on how well the uncertainty detects unknown images."""

import numpy as np

from ....results import plotting
from ....scores import metrics
from ...numbers import percent, with_error
from ..pictures import Drawing, panel
from .section import Section, Tile, Verdict, judged
from .subject import Subject
from .verdicts import NUM_ERRORS

SHOWN_SCORES = ("entropy", "mutual information")  # in pictures, for known and unknown images
HEADLINE = "entropy"  # the judged score, chosen before any data were seen: the best of several would look too good
NOTICED, PARTLY = 0.9, 0.75  # heuristic: areas under the ROC curve for unknown images, noticed or partly


def unknown_section(subject: Subject) -> Section | None:
    """Make the section on how well each score detects unknown images, with the distributions of the scores."""
    found = subject.classified
    if found is None or found.evaluation.foreign is None:
        return None
    ood, report = found.evaluation.report.ood, found.evaluation.report
    where = f"{report.num_unknown:,} images of {found.unknown_name}"
    shown = {name: found.evaluation.scores[name] for name in SHOWN_SCORES}
    known, unknown = ({f"{name} (nats)": pair[i] for name, pair in shown.items()} for i in (0, 1))
    axes = plotting.detection_curves(known, unknown, axes=np.array([panel() for _ in range(len(shown) + 1)]))
    best = max(ood, key=lambda name: ood[name].auroc)
    other = "" if best == HEADLINE else f"; {best} has {ood[best].auroc:.3f}"
    remark = f"AUROC of the {HEADLINE}, the score chosen beforehand{other}; 0.5 is a guess"
    return Section(
        "Unknown images",
        "unknown.html",
        {
            "where": where,
            "found": found,
            "ood": ood,
            "judged": HEADLINE,
            "num_known": report.num_test,
            "shown": SHOWN_SCORES,
            "pictures": [Drawing(ax) for ax in axes],
        },
        (_of_unknown(ood[HEADLINE], where),),
        (Tile("Unknown noticed", f"{ood[HEADLINE].auroc:.3f}", remark),),
    )


def _of_unknown(found: metrics.OODScores, where: str) -> Verdict:
    area, error = found.auroc, found.auroc_standard_error
    numbers = (
        f"AUROC {with_error(area, error)} by {HEADLINE}; to find 95 % of them, {percent(found.fpr95)} of the known "
        "images would be flagged, too"
    )
    text = f"Unknown images ({where}) are {{}}: {numbers}."
    low = f"{text} Do not rely on the uncertainty to refuse such images."
    is_above, is_low = area - NUM_ERRORS * error > 0.5, area + NUM_ERRORS * error < PARTLY
    few = f"Too few images to tell whether unknown ones ({where}) are noticed: {numbers}."
    return judged(
        "uncertainty" if is_above or is_low else "limit",
        f"Good: an AUROC of {NOTICED:g} or more. Problem: it is below {PARTLY:g} by {NUM_ERRORS:g} standard errors. "
        "Note: all other cases.",
        (is_low and not is_above, "problem", "unknown images not noticed", low.format("not noticed")),
        (is_low, "problem", "unknown images hardly noticed", low.format("hardly noticed")),
        (not is_above, "note", "too few images to tell whether unknown ones are noticed", few),
        (area < NOTICED, "note", "unknown images only partly noticed", text.format("only partly noticed")),
        (True, "good", "", text.format("noticed")),
    )
