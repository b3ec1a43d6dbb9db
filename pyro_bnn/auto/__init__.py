"""One call that chooses the method, settings and length of a fit, and reports why."""
