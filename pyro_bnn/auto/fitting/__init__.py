"""The best fit that the time allows, with defaults that need no tuning."""

from ._fit import fit as fit
from ._plateau import Plateau as Plateau
from ._validation import EarlyStopping as EarlyStopping
from ._variational import REMEDY as REMEDY
