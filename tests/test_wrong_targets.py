"""Targets that are not what the options say."""

import string

import pytest

from .own_data import write_table
from .test_cli import pyro_bnn  # noqa: F401  # a fixture

WORDS = [f"text {first}{second}" for first in "abcde" for second in string.ascii_lowercase][:120]


@pytest.mark.parametrize(
    ("cells", "likelihood", "remedy"),
    [
        (
            WORDS,
            "categorical",
            "; choose another --target.\n",
        ),
        (
            WORDS,
            "gaussian",
            "needs numbers; choose another --target.\n",
        ),
        ([str(number) for number in range(120)], "categorical", "choose --likelihood gaussian, since they are numbers"),
        (
            [f"20{number:02}-01-01" for number in range(99)],
            "gaussian",
            "look like dates: write them as numbers",
        ),
        (["a", "b", "c", "a", "b"] * 2, "gaussian", "needs numbers; choose --likelihood categorical.\n"),
        ([f"€{cents}.92" for cents in range(10)], "gaussian", "needs numbers; remove '€', or choose --likelihood ca"),
    ],
)
def test_the_remedy_for_a_wrong_target_is_no_circle(pyro_bnn, tmp_path, cells, likelihood, remedy):  # noqa: F811
    table = write_table(tmp_path / "t.csv", [(len(cells) - row, y) for row, y in enumerate(cells)], ("x", "y"))
    code, _, err = pyro_bnn("train", table, "--target", "y", "--likelihood", likelihood, "--out", tmp_path / "run")
    assert (code, remedy in err) == (2, True)
