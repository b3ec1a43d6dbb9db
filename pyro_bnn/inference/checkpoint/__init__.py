"""Files with posteriors: one file each, with a record that checks whether it fits the model."""

# a class of posteriors can be loaded once its module is imported
from .. import batch_norm, gauss_newton, guides, laplace, mcmc, stored  # noqa: F401
from ._files import load_posterior as load_posterior
from ._files import save_posterior as save_posterior
