"""Chooses the network, prior and likelihood that best predict held-out rows, and fits this model by chains."""

from ._budget import Budget as Budget
from ._budget import Deadline as Deadline
from ._budget import longer_limit as longer_limit
from ._budget import num_cores as num_cores
from ._choose import fit_best as fit_best
from ._chosen import FEWEST_COMPARED as FEWEST_COMPARED
from ._chosen import LONGEST as LONGEST
from ._chosen import MOST_STEPS_MADE as MOST_STEPS_MADE
from ._chosen import SMOOTHER as SMOOTHER
from ._chosen import Candidate as Candidate
from ._chosen import Chosen as Chosen
from ._designs import ACTIVATIONS as ACTIVATIONS
from ._designs import OF_CLASSES as OF_CLASSES
from ._designs import OF_NUMBERS as OF_NUMBERS
from ._designs import Design as Design
from ._designs import has_few_values as has_few_values
from ._designs import open_designs as open_designs
from ._unsuitable import UnsuitableError as UnsuitableError
