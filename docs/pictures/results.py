"""Pictures of docs/results, drawn from the tables of its pages."""

import re
from collections.abc import Sequence
from pathlib import Path

import drawing  # noqa: F401  lets scripts import `benchmarks`
from benchmarks import _dots, _hmc_tables, _methods_tables, coverage, optimise, serving

PAGES = Path(__file__).parent.parent / "results"
ONE = _methods_tables.TITLES["deterministic"]
Pair = tuple[float, float | None]


def numbers(cell: str) -> list[float]:
    """The numbers of a cell, as its mean and its standard error."""
    return [float(part) for part in re.findall(r"-?[\d.]+", re.sub(r"(?<=\d),(?=\d{3})", "", cell))]


def pair(cell: str) -> Pair:
    """The mean of a cell, and its standard error if it has one."""
    mean, *error = numbers(cell)
    return mean, error[0] if error else None


def table(page: str, head: str) -> list[str]:
    """The lines of the first table of a page whose titles begin so."""
    text = (PAGES / f"{page}.md").read_text()
    lines = text[text.index(f"\n| {head}") + 1 :].partition("\n\n")[0].splitlines()
    print(lines[0])
    return lines


def rows(lines: Sequence[str]) -> list[dict[str, str]]:
    """The cells of each line of a table by the titles; of equal titles, the later ones have a number."""
    first, _, *others = ([cell.strip() for cell in line.split("|")[1:-1]] for line in lines)
    titles = [title if title not in first[:i] else f"{title} {i}" for i, title in enumerate(first)]
    return [dict(zip(titles, cells, strict=True)) for cells in others]


def of_methods(page: str, title: str, path: Path) -> None:
    """NLL, test error and training time of each method of a page, with standard errors."""
    found = {}
    lines = table(page, "method | accuracy")
    for row in rows(lines):
        accuracy, error = pair(row["accuracy, %"])
        found[row["method"]] = [pair(row["NLL"]), (100 - accuracy, error), pair(row["training"])]
    panels, several = _methods_tables.panels(), _methods_tables.several(found)
    _dots.draw(found, panels, path, title=title, reference=ONE, several=several, table=lines)


def cost(out: Path, _quick: bool) -> None:
    """The first table of docs/results/methods.md."""
    of_methods("methods", "784-400-400-10 on FashionMNIST, three seeds", out / "cost.png")


def cost_lenet(out: Path, _quick: bool) -> None:
    """The first table of docs/results/lenet5.md."""
    of_methods("lenet5", "LeNet-5 with mirrored images on FashionMNIST, three seeds", out / "cost_lenet.png")


def hmc_images(out: Path, _quick: bool) -> None:
    """Total variation from HMC, NLL and CPU seconds."""
    lines = table("approximations", "method | agreement")
    cells = {row["method"]: row for row in rows(lines)}
    chains = {name: cells.pop(name) for name in [*cells] if name.startswith("HMC")}
    titles = ("total variation", "NLL", "CPU seconds")
    halves, *of_all = (chains["HMC: two chains and the other two"], *[chains["HMC, 4 chains"]] * 2)
    panels = _hmc_tables.panels(*(pair(row[title])[0] for row, title in zip((halves, *of_all), titles, strict=True)))
    found = {name: [pair(row[title]) for title in titles] for name, row in cells.items()}
    looks = {"title": _hmc_tables.TITLE, "reference": ONE, "several": _methods_tables.several(found)}
    _dots.draw(found, panels, out / "hmc_images.png", **looks, table=lines)


def of_serving(out: Path, _quick: bool) -> None:
    """Latencies of docs/results/serving.md."""
    lines = table("serving", "network | way")
    times = {}
    for row in rows(lines):
        columns = (row[f"{count}, ms: median, 99 %"] for count in ("1 row", "256 rows"))
        times[row["network"], row["way"]] = [numbers(cell.split(", ")[0])[0] for cell in columns]
    serving.picture(times, out / "serving.png", lines)


def of_coverage(out: Path, _quick: bool) -> None:
    """Coverage of docs/results/coverage.md; the coverage of thirds is in whole per cents, without errors."""
    of_all, of_thirds = table("coverage", "data set | expected"), table("coverage", "data set | width")
    expected, cells = {}, {}
    for row, thirds in zip(rows(of_all), rows(of_thirds), strict=True):
        name = row["data set"]
        expected[name] = pair(row["expected"])[0]
        for kind, cell in list(row.items())[2:]:
            shown = numbers(thirds.get(f"thirds: {kind}", ""))
            cells[name, kind.strip('`"')] = [pair(cell), *((value, None) for value in shown)]
    coverage.picture(cells, out / "coverage.png", expected, [*of_all, *of_thirds])


def optimisation(out: Path, _quick: bool) -> None:
    """Distances of docs/results/optimisation.md."""
    lines = table("optimisation", "function | method")
    found, titles = rows(lines), [title for title in rows(lines)[0] if title.startswith("after ")]
    curves = {(row["function"], row["method"]): [pair(row[title]) for title in titles] for row in found}
    optimise.picture(curves, [int(title.split()[1]) for title in titles], out / "optimisation.png", lines)


PICTURES = {
    "cost": cost,
    "cost_lenet": cost_lenet,
    "hmc_images": hmc_images,
    "serving": of_serving,
    "coverage": of_coverage,
    "optimisation": optimisation,
}
