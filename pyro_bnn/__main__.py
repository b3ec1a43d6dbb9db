"""The command `pyro-bnn`, started as `python -m pyro_bnn`."""

from .app.cli import main

if __name__ == "__main__":
    main()
