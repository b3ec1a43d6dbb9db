"""Small tables and runs on them."""

import csv
import json

import numpy as np

QUICK = ("--hidden", 8, "--epochs", 40)
NAMES = ("area", "rooms", "city", "garden", "price")


def houses(num_rows=60, *, seed=0, factor=1.0):
    """Rows of a table: prices that follow from numbers, a category and a truth value, with noise of scale 2."""
    numbers = np.random.default_rng(seed)
    rows = []
    for _ in range(num_rows):
        area, rooms = numbers.uniform(50, 150), int(numbers.integers(1, 6))
        city, garden = str(numbers.choice(["Rome", "Oslo", "Lima"])), bool(numbers.integers(2))
        price = 100 + area + 20 * (city == "Rome") + 10 * garden + 2 * numbers.standard_normal()
        rows.append([repr(area), rooms, city, garden, repr(factor * price)])
    return rows


def write_table(path, rows, names=NAMES, separator=","):
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, delimiter=separator)
        writer.writerow(names)
        writer.writerows(rows)
    return path


def scores_in(run):
    """The scores that `evaluate` wrote, by the name of the row."""
    return {row["name"]: row["scores"] for row in json.loads((run / "metrics.json").read_text())["rows"]}


def predictions_in(path):
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def columns_of(table):
    """The cells of a table by column, None where one is missing."""
    return {
        name: [None if cell is None or cell != cell else cell for cell in table.column(name).texts]
        for name in table.names
    }
