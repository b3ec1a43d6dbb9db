"""The command `pyro-bnn`: a module for each subcommand, shared options in `options`, the program in `program`.

The modules load the library only when work begins, so that help appears at once.
"""

from .stopping import quickly_stoppable, stoppable


def main() -> None:
    """Run the command line. An error prints one line; exit code 2 means wrong use, 1 any other error."""
    with stoppable():
        with quickly_stoppable():
            from .program import run

        run()
