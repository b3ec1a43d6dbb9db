"""Inputs of a network: one tensor or several, converted from arrays, lists and data frames."""

from ._conversion import Arguments as Arguments
from ._conversion import Batch as Batch
from ._conversion import Pair as Pair
from ._conversion import Pairs as Pairs
from ._conversion import as_inputs as as_inputs
from ._conversion import as_targets as as_targets
from ._conversion import is_whole as is_whole
from ._conversion import require_data as require_data
from ._tree import ChangedInputError as ChangedInputError
from ._tree import Inputs as Inputs
from ._tree import Shared as Shared
from ._tree import arguments_of as arguments_of
from ._tree import call as call
from ._tree import has_shared as has_shared
from ._tree import leaves as leaves
from ._tree import logits_of as logits_of
from ._tree import map_inputs as map_inputs
from ._tree import named_leaves as named_leaves
from ._tree import num_rows as num_rows
from ._tree import shapes as shapes
from ._tree import take as take
from ._tree import to_device as to_device
from ._tree import unwrapped as unwrapped
from ._tree import versions as versions
