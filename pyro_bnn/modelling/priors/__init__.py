"""Priors of weights, with fixed, inferred or learned scales."""

from ._base import PRIOR_PREFIX as PRIOR_PREFIX
from ._base import HierarchicalPrior as HierarchicalPrior
from ._base import Prior as Prior
from ._base import WeightPrior as WeightPrior
from ._base import prior_name as prior_name
from ._derived import DistributionPrior as DistributionPrior
from ._derived import PosteriorPrior as PosteriorPrior
from ._derived import PriorByName as PriorByName
from ._derived import PriorLike as PriorLike
from ._derived import as_prior as as_prior
from ._elementary import FanInNormalPrior as FanInNormalPrior
from ._elementary import LaplacePrior as LaplacePrior
from ._elementary import NetworkNormalPrior as NetworkNormalPrior
from ._elementary import NormalPrior as NormalPrior
from ._elementary import ScaleMixturePrior as ScaleMixturePrior
from ._hierarchical import HierarchicalNormalPrior as HierarchicalNormalPrior
from ._hierarchical import HorseshoePrior as HorseshoePrior
from ._hierarchical import LearnedNormalPrior as LearnedNormalPrior
