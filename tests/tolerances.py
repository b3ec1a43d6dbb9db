"""Tolerances, by kind of comparison."""

import torch

IDENTITY = {"rtol": 1e-10, "atol": 1e-12}
"""Two ways to write the same float64 number."""

SINGLE = {"rtol": 1e-5, "atol": 1e-6}
"""The same in float32."""

STANDARD_ERRORS = 5
"""Monte Carlo means may miss by this many standard errors: a false alarm in two million."""

SMALLEST_P_VALUE = 2e-5


def assert_identical(a, b):
    torch.testing.assert_close(torch.as_tensor(a), torch.as_tensor(b), **IDENTITY)


def z_scores(draws, expected):
    """How many standard errors the mean over the first axis lies from the expected value."""
    return (draws.mean(0) - expected) / (draws.std(0) / len(draws) ** 0.5)


def agrees_in_mean(draws, expected):
    return bool((z_scores(draws, expected).abs() < STANDARD_ERRORS).all())
