"""Whether images of another kind than those that the network knows are noticed."""

import numpy as np

from .... import plotting
from .html import figure, figures, panel, paragraph, table
from .numbers import TWO_SIDED_95, count, percent
from .section import Level, Section, Tile, Verdict
from .subject import Subject

__all__ = ["unknown_section"]

SHOWN = ("entropy", "mutual information")
"""Scores that have pictures."""

HEADLINE = "entropy"
"""The score of the verdict, chosen before seeing the data: the best of several scores would look better by chance."""

NOTICED, PARTLY = 0.9, 0.75
"""Heuristic: areas under the ROC curve from which unknown images are called noticed, and partly noticed."""


def unknown_section(subject: Subject) -> Section | None:
    """The area under the ROC curve of each score with its standard error, and the distributions of the scores."""
    found = subject.classified
    if found is None or found.evaluation.foreign is None:
        return None
    scores, ood = found.evaluation.scores, found.evaluation.report.ood
    area, error = ood[HEADLINE].auroc, ood[HEADLINE].auroc_standard_error
    num_unknown = found.evaluation.report.num_unknown
    where = f"{count(num_unknown)} images of {found.unknown_name}"
    tile = Tile("Unknown noticed", f"{area:.3f}", f"AUROC of the {HEADLINE}; 0.5 is a guess, 1 is perfect")
    rows = [
        (name, f"{value.auroc:.4f} ± {value.auroc_standard_error:.4f}", f"{value.aupr:.4f}", percent(value.fpr95))
        for name, value in ood.items()
    ]
    header = ("score", "AUROC ± standard error", "AUPR", "FPR95")
    shown = {name: pair for name, pair in scores.items() if name in SHOWN}
    known, unknown = ({f"{name} (nats)": pair[i] for name, pair in shown.items()} for i in (0, 1))
    alts = [f"Shares of known and of unknown images below each {name}." for name in shown]
    alts.append("ROC curves: " + ", ".join(f"area {ood[name].auroc:.3f} below that of the {name}" for name in shown))
    axes = plotting.detection_curves(known, unknown, axes=np.array([panel() for _ in alts]))
    pictures = [figure(ax, alt=alt) for ax, alt in zip(axes, alts, strict=True)]
    words = paragraph(
        f"None of {where} belongs to a class that the network was trained on. A good uncertainty is larger for these "
        f"than for the {found.test_name}. AUROC: chance that an unknown image scores above a known one. AUPR: average "
        "precision. FPR95: known images taken for unknown when 95 % of the unknown are found."
    )
    table_of_scores = table(header, rows, caption=f"{where} against {count(found.evaluation.report.num_test)} known")
    level, text = _judged(area, error)
    verdict = Verdict(
        level,
        f"Unknown images ({where}) {text}: AUROC {area:.3f} ± {error:.3f} by {HEADLINE}; to find 95 % of them, "
        f"{percent(ood[HEADLINE].fpr95)} of the known would be flagged as well.",
    )
    return Section("Unknown images", words + table_of_scores + figures(*pictures), (verdict,), (tile,))


def _judged(area: float, error: float) -> tuple[Level, str]:
    if not area - TWO_SIDED_95 * error > 0.5:
        return "problem", "are not noticed"
    if area < PARTLY:
        return "problem", "are hardly noticed"
    if area < NOTICED:
        return "note", "are partly noticed"
    return "good", "are noticed"
