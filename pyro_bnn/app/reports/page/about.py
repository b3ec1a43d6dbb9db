"""What a run was, what its report was computed with, and how to repeat both."""

import platform
import shlex
from datetime import datetime, timezone
from html import escape

import pyro
import torch

import pyro_bnn

from .html import table
from .section import Section
from .subject import Subject

__all__ = ["about_section", "configuration_section", "environment"]


def configuration_section(subject: Subject) -> Section:
    """The run's settings and data."""
    return Section(
        "Configuration",
        table(("setting", "value"), list(subject.settings.items()), caption="Settings of the training", is_words=True)
        + table(("data", "value"), list(subject.data.items()), caption="Data", is_words=True),
    )


def about_section(subject: Subject) -> Section:
    """Versions, date, and commands."""
    report = shlex.join(
        ["pyro-bnn", "report", str(subject.run), "--num-samples", str(subject.num_samples), "--seed", str(subject.seed)]
    )
    commands = "\n".join([subject.command, report])
    return Section(
        "How to repeat",
        f"<pre>{escape(commands)}</pre>"
        + table(("with", "value"), environment(subject), caption="Environment of this report", is_words=True),
    )


def environment(subject: Subject) -> list[tuple[str, str]]:
    """What the report was computed with."""
    return [
        ("pyro_bnn", pyro_bnn.__version__),
        ("torch", torch.__version__),
        ("Pyro", pyro.__version__),
        ("Python", platform.python_version()),
        ("system", platform.platform(terse=True)),
        ("device", subject.device),
        ("weight draws", f"{subject.num_samples}, seed {subject.seed}"),
        ("date", datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC")),
    ]
