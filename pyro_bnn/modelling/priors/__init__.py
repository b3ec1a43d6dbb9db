"""Priors of weights, with fixed, inferred or learned scales."""

from ._base import PRIOR_PREFIX as PRIOR_PREFIX
from ._base import HierarchicalPrior as HierarchicalPrior
from ._base import Prior as Prior
from ._base import WeightPrior as WeightPrior
from ._base import prior_name as prior_name
from ._elementary import FanInNormalPrior as FanInNormalPrior
from ._elementary import LaplacePrior as LaplacePrior
from ._elementary import NetworkNormalPrior as NetworkNormalPrior
from ._elementary import NormalPrior as NormalPrior
from ._elementary import ScaleMixturePrior as ScaleMixturePrior
from ._hierarchical import HierarchicalNormalPrior as HierarchicalNormalPrior
from ._hierarchical import HorseshoePrior as HorseshoePrior
from ._hierarchical import LearnedNormalPrior as LearnedNormalPrior
from ._of_distribution import DistributionPrior as DistributionPrior
from ._of_distribution import PriorByName as PriorByName
from ._of_distribution import PriorLike as PriorLike
from ._of_distribution import as_prior as as_prior
from ._posterior import PosteriorPrior as PosteriorPrior
