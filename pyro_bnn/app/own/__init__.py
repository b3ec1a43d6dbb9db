"""Own data and own networks: tables, arrays, and networks by the name of a function."""
