"""The report's section on the columns of a table."""

from .section import Section
from .subject import Subject

MOST_COLUMNS = 15  # in the table that is open at first


def data_section(subject: Subject) -> Section | None:
    """Make the section on the columns of a table: how each is used, or why it is left out."""
    columns = subject.columns
    if not columns:
        return None
    return Section(
        "Data",
        "data.html",
        {
            "shown": columns[:MOST_COLUMNS],
            "others": columns[MOST_COLUMNS:],
            "num_columns": len(columns),
            "num_left_out": sum(column.is_left_out for column in columns),
            "notes": subject.notes,
        },
    )
