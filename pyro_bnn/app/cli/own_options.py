"""Options for data and networks of one's own, and of `predict`."""

from pathlib import Path
from typing import Annotated

import typer

from .options import one_of

OWN = "Tables and arrays of your own"
"""Heading in the help."""

Target = Annotated[
    str | None, typer.Option(help="Column of a table to predict.", show_default=False, rich_help_panel=OWN)
]
Features = Annotated[
    str | None,
    typer.Option(
        help="Columns of a table to predict from, separated by commas. Columns that count or name the rows are used "
        "only if they are among these.",
        show_default="all but the target",
        rich_help_panel=OWN,
    ),
]
Ignore = Annotated[
    str | None,
    typer.Option(
        help="Columns of a table that are not used, such as identifiers; `predict` copies them.",
        show_default="none",
        rich_help_panel=OWN,
    ),
]
DropMissing = Annotated[
    bool | None,
    typer.Option(
        "--drop-missing/--no-drop-missing",
        help="Leave out rows that lack a value.",
        show_default="one more input says which values are missing",
        rich_help_panel=OWN,
    ),
]
LikelihoodSpec = Annotated[
    str | None,
    typer.Option(
        help="categorical for classes; gaussian (noise of one size, learned; or gaussian:SCALE, in its units), "
        "heteroscedastic (noise that depends on the inputs) or mixture[:COMPONENTS] for numbers; poisson for counts.",
        show_default="guessed from the target, and said",
        autocompletion=one_of("categorical", "gaussian", "heteroscedastic", "mixture", "poisson"),
        rich_help_panel=OWN,
    ),
]
TestFraction = Annotated[
    float | None,
    typer.Option(
        help="Share of the rows that is not trained on, for `evaluate`; not for arrays with x_test.",
        show_default="0.2",
        rich_help_panel=OWN,
    ),
]
SplitSeed = Annotated[
    int | None,
    typer.Option(
        help="Seed of the choice of those rows, so that runs of several --seed have the same.",
        show_default="0",
        rich_help_panel=OWN,
    ),
]
SplitBy = Annotated[
    str | None,
    typer.Option(
        help="Column of a table with dates or numbers: the latest rows are set aside, in place of a choice at random.",
        show_default="a choice at random",
        rich_help_panel=OWN,
    ),
]
Net = Annotated[
    str | None,
    typer.Option(
        help="Network of your own: FILE.py:FUNCTION or MODULE:FUNCTION. The function returns a torch.nn.Module; it "
        "gets input_shape (of one row) and num_outputs by keyword if it has arguments of these names. `evaluate` and "
        "`predict` import it again, so open only runs of people you trust.",
        show_default="fully connected layers of --hidden units",
        rich_help_panel="Data, network and prior",
    ),
]
EstimatorSpec = Annotated[
    str | None,
    typer.Option(
        help="Estimator of gradients: weights (draws each weight once a step), local (draws outputs of linear layers "
        "instead) or flipout.",
        show_default="weights, for tables and arrays local",
        autocompletion=one_of("weights", "local", "flipout"),
        rich_help_panel="Fit",
    ),
]

# --- of `predict` -----------------------------------------------------------------------------------------------------

NewRows = Annotated[
    Path,
    typer.Argument(
        help="Rows to predict: a table with the columns that the run was trained on, or arrays (*.npz) with x.",
        show_default=False,
    ),
]
Predictions = Annotated[
    str, typer.Option(help="File for the predictions, as CSV; - is standard output.", show_default="-")
]
Level = Annotated[
    str, typer.Option(help="Probabilities of the intervals around predicted numbers, separated by commas.")
]
KeepColumns = Annotated[
    str | None,
    typer.Option(
        help="Columns of the table to copy beside the predictions, such as an identifier. One that is named like a "
        "prediction, such as mean, gets the ending (input).",
        show_default="those that training ignored",
    ),
]
AllowUnseen = Annotated[
    bool,
    typer.Option(
        "--allow-unseen", help="Predict rows with categories that training did not have, as none of those it had."
    ),
]
DropRows = Annotated[
    bool,
    typer.Option("--drop-missing", help="Leave out rows that lack a value to predict from."),
]
ReplaceFile = Annotated[bool, typer.Option("--force", help="Replace the file of predictions if it is there.")]


def read_names(text: str) -> tuple[str, ...]:
    """Names from a text such as ``id,name``; blanks around them are not part of them."""
    return tuple(part.strip() for part in text.split(",") if part.strip())
