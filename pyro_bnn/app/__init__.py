"""The command-line program, which uses the library, and leaves all mathematics to it. No module imports the program."""
