"""What speaks to other programs: scikit-learn and TensorBoard."""
