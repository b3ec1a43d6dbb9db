"""The error for files that are not there."""

__all__ = ["MissingDataError"]


class MissingDataError(FileNotFoundError):
    """The files of a data set are not in the folder where they were looked for."""
