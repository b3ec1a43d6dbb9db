"""The command-line program. All mathematics is in the library, and no module of the library imports the program."""
