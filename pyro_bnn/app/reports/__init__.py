"""Reports on a training run: each measures the run, and writes files into its folder."""
