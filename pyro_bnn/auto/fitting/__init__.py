"""The best fit that is possible in a given time, with default settings."""

from ._fit import fit as fit
from ._variational import REMEDY as REMEDY
from ._variational import EarlyStopping as EarlyStopping
from ._variational import Plateau as Plateau
from ._variational import TimeLimit as TimeLimit
