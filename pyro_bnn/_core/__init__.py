"""What every room uses: checks, files, scopes, processes, records, inputs, and running modules."""
