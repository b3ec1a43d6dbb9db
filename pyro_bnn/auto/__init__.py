"""The function `fit`, which chooses a method, its settings, and how long the fit runs."""
