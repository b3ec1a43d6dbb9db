"""One call that chooses method, settings and length, and reports why."""
