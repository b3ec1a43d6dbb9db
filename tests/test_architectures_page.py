"""The page on networks shows the table that the tests run over."""

from pathlib import Path

from .architectures import ARCHITECTURES, Architecture

PAGE = Path(__file__).parent.parent / "docs" / "understand" / "networks.md"
COLUMNS = ("network", "SVI", "natural gradient", "NUTS", "predict", "save", "float64", "prune", "remark")


def row(name: str, architecture: Architecture) -> tuple[str, ...]:
    """What the tests show of an architecture."""
    nuts = "refused" if architecture.refusal else "yes"
    pruned = "in part" if architecture.kept else "yes"
    return name, "yes", "yes", nuts, "yes", "yes", "yes", pruned, architecture.remark


def table() -> str:
    """The table of the page."""
    rows = [COLUMNS, tuple("---" for _ in COLUMNS), *(row(*item) for item in ARCHITECTURES.items())]
    return "".join(f"| {' | '.join(cells)} |\n".replace(" |  |", " | |") for cells in rows)


def test_the_table_of_the_page_is_that_of_the_tests():
    expected = table()
    found = PAGE.read_text().partition("\n## ")[0]
    shown = "".join(f"{line}\n" for line in found.splitlines() if line.startswith("| "))
    assert shown == expected, f"put this table into {PAGE}:\n{expected}"
