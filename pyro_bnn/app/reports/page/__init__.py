"""The report on a run as one HTML page: a list of sections, each a function from the run to a part of the page."""

from collections.abc import Callable, Sequence

from .about import about_section, configuration_section
from .accuracy import accuracy_section
from .calibration import calibration_section
from .errors import errors_section
from .examples import examples_section
from .frame import headline, page
from .intervals import intervals_section
from .measuring import subject_of
from .section import Section, Verdict
from .subject import Subject
from .training import training_section
from .unknown import unknown_section
from .weights import weights_section

__all__ = [
    "SECTIONS",
    "Section",
    "Subject",
    "Verdict",
    "headline",
    "make_page",
    "sections_of",
    "subject_of",
]

SECTIONS: tuple[Callable[[Subject], Section | None], ...] = (
    accuracy_section,
    calibration_section,
    unknown_section,
    errors_section,
    intervals_section,
    examples_section,
    training_section,
    weights_section,
    configuration_section,
    about_section,
)
"""All sections in their order; one that has nothing to say of a run returns None."""


def sections_of(subject: Subject) -> list[Section]:
    """What there is to say of a run."""
    found = (section(subject) for section in SECTIONS)
    return [section for section in found if section is not None]


def make_page(subject: Subject, sections: Sequence[Section]) -> str:
    """The page as HTML.

    Args:
        subject: The run.
        sections: Its sections.
    """
    return page(
        subject.title,
        f"Report on {subject.run}, with {subject.num_samples} weight draws.",
        sections,
        footer="Words such as good, weak or noticed follow heuristic thresholds; intervals and ± are as computed: 95 % "
        "intervals, and one standard error. Made by pyro-bnn report.",
    )
