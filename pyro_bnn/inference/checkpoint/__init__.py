"""Saves posteriors to files, and loads them after checks that the file matches the model."""

# classes of posteriors can be loaded only after their modules are imported
from .. import batch_norm, gauss_newton, guides, laplace, mcmc, stored  # noqa: F401
from ._files import load_calibration as load_calibration
from ._files import load_posterior as load_posterior
from ._files import save_posterior as save_posterior
