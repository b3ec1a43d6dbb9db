"""Reports on a training run, one module each: they measure, print, and write into the run's folder."""
