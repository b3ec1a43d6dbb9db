"""The command `pyro-bnn`: one module per subcommand, their options in `options`, the program in `program`.

These modules declare what can be typed, and load the library where its work begins: help comes at once.
"""

from .stopping import loading, stoppable


def main() -> None:
    """Run the command line. A fault gives one line; exit code 2 stands for wrong use, 1 for other faults."""
    with stoppable():
        with loading():
            from .program import run

        run()
