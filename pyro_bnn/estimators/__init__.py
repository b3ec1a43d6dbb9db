"""Gradient estimators: they draw noise for each row of data instead of once per batch, so that gradients vary less."""

from ._applied import ELBOS as ELBOS
from ._applied import Applied as Applied
from ._applied import random_layers as random_layers
from ._base import Estimator as Estimator
from ._base import Flipout as Flipout
from ._base import LocalReparameterization as LocalReparameterization
from ._layers import Layer as Layer
