"""The command-line program: settings, training runs, reports and demonstrations.

The program uses the library, and leaves all mathematics to it. No module of the library imports the program.
"""
