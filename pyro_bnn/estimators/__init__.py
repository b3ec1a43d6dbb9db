"""Gradient estimators: noise drawn for each row of data instead of once for all, so that gradients vary less."""

from ._base import Estimator as Estimator
from ._base import Flipout as Flipout
from ._base import LocalReparameterization as LocalReparameterization
