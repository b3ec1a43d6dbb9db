"""The function `fit`, which chooses the method, the settings and the length of a fit, and says why."""
