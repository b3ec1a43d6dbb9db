"""The command `pyro-bnn`.

Each subcommand has a separate module. Each module loads the library only when the subcommand runs, so that the help
appears at once.
"""

from .stopping import quickly_stoppable, stoppable


def main() -> None:
    """Run the command line.

    After an error, the program prints one line. The exit code is 2 after wrong use, and 1 after another error.
    """
    with stoppable():
        with quickly_stoppable():
            from .program import run

        run()
