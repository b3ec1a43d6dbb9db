"""The report on a run as one HTML page. Sections compute and judge numbers, and templates render them."""

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from ...._core.summary import counted
from ...numbers import in_series, number, percent, together, with_error
from ...remedies import quote
from ...runs import is_chains
from .calibration import calibrated_section, calibration_section
from .chains import calmed, chains_section
from .classifier import accuracy_section, all_right
from .columns import data_section
from .drivers import drivers_section, surprises_section
from .examples import examples_section
from .fit import (
    about_section,
    configuration_section,
    longer,
    of_temperature,
    training_command,
    training_section,
    weights_section,
)
from .intervals import intervals_section
from .model import model_in_words
from .regression import errors_section
from .section import RULE, Headline, Section, Verdict, first_line, in_order
from .section import leading as leading
from .section import level_of as level_of
from .section import usability as usability
from .subject import Subject
from .unknown import unknown_section
from .verdicts import of_rivals

SECTIONS: tuple[Callable[[Subject], Section | None], ...] = (
    accuracy_section,
    calibration_section,
    unknown_section,
    errors_section,
    intervals_section,
    calibrated_section,
    drivers_section,
    surprises_section,
    examples_section,
    data_section,
    configuration_section,
    about_section,
    chains_section,
    training_section,
    weights_section,
)
"""The functions that make the sections, in the order of the page. Each returns None if its section does not apply."""


def verdicts_on(subject: Subject) -> tuple[Headline, list[Verdict], list[Section]]:
    """Judge a run. Return the first line of the report, the verdicts (worst first), and the sections."""
    sections = [section for make in SECTIONS if (section := make(subject)) is not None]
    posterior = subject.posterior
    found = [verdict for section in sections for verdict in section.verdicts]
    temperature = () if is_chains(posterior) else of_temperature(posterior.history)
    verdicts = in_order(calmed(all_right(subject.classified, of_rivals([*temperature, *found]))))
    if causes := causes_in(verdicts):
        verdicts = [verdict if verdict in causes else replace(verdict, changes={}) for verdict in verdicts]
    changes: dict[str, Any] = {}
    for name, value in (item for verdict in verdicts for item in verdict.changes.items()):
        changes[name] = max(value, changes.get(name, value)) if name == "time_limit" else value
    if verdicts and not changes and usability(verdicts) == "not usable" and verdicts[0].about != "fit":
        changes = longer(subject)
        verdicts[0] = replace(verdicts[0], changes=changes)
    is_known = bool(changes and subject.asked)  # one command, since each of several would lack some changes
    command = training_command(subject, "2", changes) if is_known else ""
    headline = first_line(verdicts, ", and ".join(section.usable for section in sections if section.usable))
    step, done_by = _step(subject, verdicts, command)
    verdicts = [replace(verdict, command=command) if verdict.changes else verdict for verdict in verdicts]
    return replace(headline, step=step, command=done_by), verdicts, sections


def causes_in(verdicts: Sequence[Verdict]) -> list[Verdict]:
    """Return the faults that can have caused the others, and that another training may mend."""
    return [verdict for verdict in verdicts if verdict.is_cause and verdict.changes]


STEPS = {
    "usable": ("Train again:", "Predict new rows:"),
    "usable with notes": ("You can use this run. For a better one, train again:", "Predict new rows:"),
    "usable for predictions only": ("Train again:", "Predict new rows, and do not use their uncertainty:"),
    "too few rows to tell": (
        "Train again. Then score the new run on more rows:",
        "Score the run on more rows, in a file that also has their targets:",
    ),
    "not usable": ("Train again:", ""),
}
"""For each word of `usability`, what to do next if another training may mend faults, and if none may."""


def _step(subject: Subject, verdicts: Sequence[Verdict], command: str) -> tuple[str, str]:
    """Return what to do next, and how. `command` trains again, and is empty if another training mends no fault."""
    again, step = STEPS[word := usability(verdicts)]
    if command or not step or subject.config.kind == "images":  # `predict` takes no images
        return again if command else "", command
    better = [name for verdict in verdicts if verdict.is_beaten for name in verdict.rivals]
    if better and word == "usable with notes":
        step = f"If you need no uncertainty, use {in_series(better)}. Otherwise, predict new rows:"
    return step, f"pyro-bnn predict {quote(subject.run)} new{Path(subject.config.dataset).suffix}"


def report_on(subject: Subject) -> tuple[str, list[Verdict], str]:
    """Judge a run. Return the first line of the report, the verdicts, and the HTML of the whole page."""
    headline, verdicts, sections = verdicts_on(subject)
    subtitle = f"Report on {subject.run}, with {subject.num_samples} draws of the weights."
    return (
        str(headline),
        verdicts,
        page_of(subject.title, subtitle, headline, verdicts, sections, model=model_in_words(subject)),
    )


def page_of(
    title: str,
    subtitle: str,
    headline: Headline,
    verdicts: Sequence[Verdict],
    sections: Sequence[Section],
    *,
    model: str = "",
) -> str:
    """Return the HTML of the whole page, in which all inserted texts are escaped."""
    environment = Environment(
        loader=PackageLoader(__name__, "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"count": "{:,}".format, "percent": percent, "plural": counted, "form": format}
    environment.filters |= {"together": lambda text: unbroken(minus(together(text))), "unbroken": unbroken}
    environment.filters |= {"number": lambda *value: minus(number(*value)), "with_error": with_error}
    num_faults = sum(verdict.level != "good" for verdict in verdicts)  # they come first
    return environment.get_template("page.html").render(
        title=title,
        level=level_of(verdicts),
        subtitle=subtitle,
        model=model,
        headline=headline,
        rule=RULE,
        verdicts=verdicts[:num_faults],
        right=verdicts[num_faults:],
        sections=sections,
    )


def minus(text: str) -> str:
    """Return a text in which negative numbers have a minus sign instead of a hyphen; dates and ranges do not change."""
    return re.sub(r"(?<![\w.)-])-(?=[\d.])", "\N{MINUS SIGN}", text)


def unbroken(text: str) -> Markup:
    """Return a text as HTML in which no line ends within an option such as ``--time-limit``, or within a date."""
    return Markup(
        re.sub(r"(?<![\w-])--[a-z][a-z-]*|\b\d{4}-\d\d-\d\d\b", r"<span class=option>\g<0></span>", str(escape(text)))
    )
