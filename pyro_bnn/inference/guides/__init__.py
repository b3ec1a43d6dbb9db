"""Guides: distributions that approximate the posterior of a model's latent variables."""

from ..._core.copies import tree as tree
from ._auto import auto_guide as auto_guide
from ._batch_ensemble import BatchEnsembleGuide as BatchEnsembleGuide
from ._delta import DeltaGuide as DeltaGuide
from ._diagnosis import IF_AT_PRIOR as IF_AT_PRIOR
from ._diagnosis import IF_COLLAPSED as IF_COLLAPSED
from ._diagnosis import Diagnosis as Diagnosis
from ._diagnosis import SiteDiagnosis as SiteDiagnosis
from ._diagnosis import problems_of as problems_of
from ._flat import FlatGuide as FlatGuide
from ._init import Init as Init
from ._init import NetworkInit as NetworkInit
from ._init import NormalInit as NormalInit
from ._init import UniformInit as UniformInit
from ._init import require_same_model as require_same_model
from ._low_rank import LowRankGuide as LowRankGuide
from ._mean_field import MeanFieldGuide as MeanFieldGuide
from ._natural_state import NaturalState as NaturalState
from ._posterior import GuidePosterior as GuidePosterior
from ._posterior import as_posterior as as_posterior
from ._state import FlatState as FlatState
from ._state import Noise as Noise
from ._state import ParameterVector as ParameterVector
from ._state import RandomParameter as RandomParameter
from ._state import lent as lent
