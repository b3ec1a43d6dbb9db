"""The short path: fits with defaults that work without tuning."""

from ._fit import fit as fit
from ._plateau import Plateau as Plateau
from ._validation import EarlyStopping as EarlyStopping
