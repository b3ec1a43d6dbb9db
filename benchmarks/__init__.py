"""Times of this library beside others, each command in one file."""
