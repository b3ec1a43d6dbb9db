"""Data and networks of the user: tables, arrays, and networks by the name of a function."""
