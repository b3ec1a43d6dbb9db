"""Data sets as tensors, and corruptions of images."""

from .._core.remedies import explain_errors
from ._corruptions import add_noise, blur, lower_contrast
from ._images import GREY_SETS as GREY_SETS
from ._images import Images, MissingDataError, load_images, load_packed_images, read_packed_images
from ._tables import UCI_SETS as UCI_SETS
from ._tables import Regression, load_uci, regression_problem

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

explain_errors(__name__)
