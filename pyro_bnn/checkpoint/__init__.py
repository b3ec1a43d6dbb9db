"""Files with posteriors: one file each, with what is needed to check that it fits the model."""

from ._files import load_posterior as load_posterior
from ._files import save_posterior as save_posterior
