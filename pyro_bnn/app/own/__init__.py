"""The user's own tables, arrays and networks."""
