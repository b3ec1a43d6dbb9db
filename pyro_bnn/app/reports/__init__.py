"""Reports on a training run. Each report measures the run, and writes files into the run's folder."""
