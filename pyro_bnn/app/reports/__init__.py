"""Reports on a training run, one module each: what is measured, printed, and written into the run's folder."""
