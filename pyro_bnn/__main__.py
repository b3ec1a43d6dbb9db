"""`python -m pyro_bnn` is the command `pyro-bnn`."""

from .app.cli import main

if __name__ == "__main__":
    main()
