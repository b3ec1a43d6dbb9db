"""Code that the whole package shares: checks, files, inputs, global state, and the running of modules."""
