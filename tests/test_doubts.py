"""Notes on what may be mistakes in a table, such as codes of missing values, and on rows unlike those of training."""

import numpy as np
import pandas as pd
import pytest

from pyro_bnn.app import sources
from pyro_bnn.app.own.cells import Cells
from pyro_bnn.app.own.doubts import doubts_about

from .test_messy_tables import config_of, kinds_in, loaded, table_of

NUMBERS = np.random.default_rng(0)
TEMPERATURES = NUMBERS.uniform(36, 41, 50).round(1)


def on_numbers(values):
    texts = pd.Series([f"{value:.15g}" for value in values], dtype=object)
    return doubts_about(Cells("k", "t.csv", texts), "number", is_target=False)


@pytest.mark.parametrize(
    ("values", "codes"),
    [
        ([*TEMPERATURES, *[-999] * 5], ["-999 in 5 rows"]),
        ([*TEMPERATURES, *[-9999] * 3, *[-999] * 4, *[9999] * 5], ["-9999 in 3", "-999 in 4", "9999 in 5"]),
        ([*range(18, 90), *[-99] * 3], ["-99 in 3 rows"]),
        ([*NUMBERS.uniform(0.2, 0.9, 50), *[-1] * 3], ["-1 in 3 rows"]),
        ([*NUMBERS.uniform(5000, 6000, 50), *[12345] * 3], ["12345 in 3 rows"]),
        ([*TEMPERATURES, -999, -999], []),  # two rows may be measured
        ([*range(1, 80), *[99] * 5], []),  # near the others
    ],
)
def test_a_number_that_repeats_far_from_all_others_is_named(values, codes):
    said = on_numbers(values)
    assert len(said) == len(codes)
    assert all(
        code in note and "if it means missing, empty these cells" in note
        for note, code in zip(said, codes, strict=True)
    )


@pytest.mark.parametrize(
    "values",
    [
        NUMBERS.lognormal(0, 2, 500).round(),
        NUMBERS.pareto(0.5, 500).round(),
        NUMBERS.standard_cauchy(500).round(),
        NUMBERS.geometric(0.3, 500),
        np.where(NUMBERS.uniform(size=500) < 0.8, 0, NUMBERS.lognormal(5, 1, 500)),
        NUMBERS.choice([-1, 0, 1], 60),
        NUMBERS.choice([0, 100], 60),
        NUMBERS.choice([0.1, 1, 10, 100, 1000], 60),  # doses
    ],
)
def test_skewed_columns_and_levels_hold_no_codes(values):
    assert on_numbers(values) == []


def test_spellings_of_one_category_and_classes_of_few_rows_are_noted_and_stored(tmp_path):
    data = loaded(table_of(tmp_path, sex=[*"FfMM"] * 10, c=[*"pq" * 19, "dead", "P"]), target="c")
    said = {column.name: column.doubts for column in data.facts.columns}
    assert said["a"] == []
    assert [note.split(":")[0] for note in said["sex"] + said["c"]] == [
        "Column 'sex' holds 'F', 'f', which differ only in case or spaces",
        "Column 'c' holds 'P', 'p', which differ only in case or spaces",
        "2 classes of 'c' with fewer than 5 rows can hardly be learned",
    ]
    assert {f"Warning: {note}" for notes in said.values() for note in notes} <= {*data.notes}


@pytest.mark.parametrize(("form", "is_told"), [("{} Jan 2024", True), ("Mai-{:02d}", True), ("Markt {}", False)])
def test_dates_with_names_of_months_are_told(tmp_path, form, is_told):
    data = loaded(table_of(tmp_path, day=[form.format(i % 28 + 1) for i in range(40)]))
    assert any("Dates with names of months in 'day' are read as texts." in note for note in data.notes) == is_told


def test_each_column_that_is_unlike_training_is_named_in_its_row(tmp_path):
    days = pd.date_range("2024-01-01", periods=40).strftime("%Y-%m-%d")
    path = table_of(tmp_path, city=["Oslo", "Rome"] * 20, day=days)
    config = config_of(path)
    new = tmp_path / "new.csv"
    new.write_text("a,city,day\n0,Oslo,2024-03-01\n0,Paris,2050-01-01\n1e6,Rome,2024-01-01\n")
    sample = sources.read_sample(config, sources.load(config).facts, new, allow_unseen=True)
    assert sample.outside == ["", "city; day", "a"]
    for said in ("column 'city' holds 'Paris' in line 3.", "The date in column 'day' is far", "'a' is far"):
        assert sum(said in note for note in sample.notes) == 1


def test_a_column_that_may_count_days_is_used_and_said(tmp_path):
    data = loaded(table_of(tmp_path, day=[*range(40)], year=[*range(1980, 2020)]))
    assert kinds_in(data) == {"a": "number", "day": "number", "year": "number"}
    [said] = [note for note in data.notes if "--ignore" in note]
    assert said.startswith("Warning: Numbers in 'day', 'year' are used as times.")
