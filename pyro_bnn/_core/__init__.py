"""Code shared by the whole package: checks, files, scopes, processes, records, inputs, and running modules."""
