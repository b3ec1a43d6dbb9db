"""The command `pyro-bnn`. Each subcommand loads the library only when it runs, so that the help appears at once."""

from .stopping import quickly_stoppable, stoppable


def main() -> None:
    """Run the command line. After an error, print one line, and exit with code 2 (wrong use) or 1 (other errors)."""
    with stoppable():
        with quickly_stoppable():
            from .program import run

        run()
