"""Data sets as tensors, and corruptions of images."""

from .._core.remedies import explain_missing
from ._corruptions import add_noise as add_noise
from ._corruptions import blur as blur
from ._corruptions import lower_contrast as lower_contrast
from ._images import GREY_SETS as GREY_SETS
from ._images import Images as Images
from ._images import MissingDataError as MissingDataError
from ._images import load_images as load_images
from ._images import load_packed_images as load_packed_images
from ._images import read_packed_images as read_packed_images
from ._tables import UCI_SETS as UCI_SETS
from ._tables import Regression as Regression
from ._tables import load_uci as load_uci
from ._tables import regression_problem as regression_problem

__all__ = [
    "Images",
    "MissingDataError",
    "Regression",
    "add_noise",
    "blur",
    "load_images",
    "load_packed_images",
    "load_uci",
    "lower_contrast",
    "read_packed_images",
    "regression_problem",
]

explain_missing(__name__)
