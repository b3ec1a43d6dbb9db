"""The command-line program: settings, training runs, reports and demonstrations.

It uses the library and contains no mathematics. Nothing in the library imports it.
"""
