"""Memory for results within a network that do not depend on its random parameters."""

from ._memory import Memory as Memory
from ._memory import Plan as Plan
from ._recording import Diverged as Diverged
from ._recording import State as State
from ._recording import generators_of_others as generators_of_others
