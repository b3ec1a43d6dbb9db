"""Benchmarks of this library against others; each command is one file."""
