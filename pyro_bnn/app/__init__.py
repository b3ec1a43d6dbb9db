"""The command-line program: settings, training runs, reports and demonstrations.

The program uses the library and contains no mathematics. No module of the library imports the program.
"""
