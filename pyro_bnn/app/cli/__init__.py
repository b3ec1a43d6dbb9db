"""The command `pyro-bnn`: one module per subcommand, their options in `options`, the program in `program`."""

from .program import main as main

__all__ = ["main"]
