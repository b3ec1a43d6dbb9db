"""The page on networks lists the networks that the tests run over, and the exceptions."""

import re
from pathlib import Path

from .architectures import ARCHITECTURES

PAGE = Path(__file__).parent.parent / "docs" / "understand" / "networks.md"


def items() -> dict[str, list[str]]:
    """The lists of the section on what was tested: title -> names."""
    section = PAGE.read_text().partition("## What was tested\n")[2].partition("</details>")[0]
    lines = re.findall(r"(?m)^- (.*(?:\n  .*)*)", section)
    divided = [re.sub(r"\s+", " ", line).partition(": ") for line in lines]
    return {title: names.removesuffix(".").split("; ") for title, _, names in divided}


def test_the_page_lists_the_tested_networks_and_the_exceptions():
    found = items()
    assert found.pop("Refused by NUTS") == [name for name, tested in ARCHITECTURES.items() if tested.refusal]
    assert found.pop("Pruned only in part") == [name for name, tested in ARCHITECTURES.items() if tested.kept]
    assert [name for names in found.values() for name in names] == [*ARCHITECTURES]
