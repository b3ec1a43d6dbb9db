"""The function `fit`, which chooses a method, its settings and its length."""
