"""Reports on a training run: scores of its predictions, diagnoses of its weights, and the files that show them."""
