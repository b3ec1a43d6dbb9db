"""Weight priors: each maps (name, parameter, layer) to a distribution."""

from ._base import Prior as Prior
from ._by_name import PriorByName as PriorByName
from ._elementary import FanInNormalPrior as FanInNormalPrior
from ._elementary import LaplacePrior as LaplacePrior
from ._elementary import NormalPrior as NormalPrior
from ._elementary import ScaleMixturePrior as ScaleMixturePrior
