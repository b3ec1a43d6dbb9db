"""The program: command line, settings of runs, training runs, reports and demonstrations.

It is built on the library's public interface and holds no mathematics; nothing in the library imports it.
"""
