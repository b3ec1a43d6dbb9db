"""The best fit that is possible in a given time, with default settings."""

from ._fit import fit as fit
from ._stopping import EarlyStopping as EarlyStopping
from ._stopping import Plateau as Plateau
from ._stopping import TimeLimit as TimeLimit
from ._variational import REMEDY as REMEDY
