"""Context managers that change global state and restore it: generators, modes, Pyro's parameter store, warnings."""

from ._exclusive import EXCLUSIVE as EXCLUSIVE
from ._exclusive import ProcessLock as ProcessLock
from ._exclusive import Stream as Stream
from ._exclusive import eval_mode as eval_mode
from ._exclusive import reseed as reseed
from ._exclusive import restored as restored
from ._exclusive import seeded as seeded
from ._exclusive import undone as undone
from ._pyro import AbstractPyroModule as AbstractPyroModule
from ._pyro import allow_local_mode as allow_local_mode
from ._pyro import is_auxiliary as is_auxiliary
from ._pyro import leave_pyro as leave_pyro
from ._pyro import local_param as local_param
from ._pyro import own_parameters as own_parameters
from ._pyro import short_errors as short_errors
from ._pyro import without_pyro as without_pyro
from ._warnings import filtered_warnings as filtered_warnings
from ._warnings import outer_stacklevel as outer_stacklevel
from ._warnings import silent_fits as silent_fits
from ._warnings import warn_of_fit as warn_of_fit
