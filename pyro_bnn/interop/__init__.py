"""Interfaces to scikit-learn and TensorBoard."""
