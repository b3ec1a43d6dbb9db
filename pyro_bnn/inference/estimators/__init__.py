"""Gradient estimators, which draw separate noise for each row of data, so that gradients vary less."""

from ._base import ELBOS as ELBOS
from ._base import Applied as Applied
from ._base import Estimator as Estimator
from ._flipout import Flipout as Flipout
from ._layers import Layer as Layer
from ._local_reparameterization import LocalReparameterization as LocalReparameterization
