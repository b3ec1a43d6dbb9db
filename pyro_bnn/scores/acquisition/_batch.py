"""BatchBALD, which chooses rows that are informative together."""

from dataclasses import dataclass

import torch
from torch import Tensor

from ..._core import checks as _checks
from ..._core.scope import seeded
from ..uncertainty import ClassificationPrediction, mutual_information
from ._scores import NUMBERS, by_rows, class_draws, probs_of


def batch_bald(
    pool: ClassificationPrediction | Tensor, num_rows: int, *, num_combinations: int = 1000, seed: int | None = None
) -> tuple[Tensor, Tensor]:
    r"""Choose several rows whose labels together give the most information about the weights.

    Rows with the largest values of :func:`bald` are often alike, so that a second label adds little. BatchBALD chooses
    rows one by one: it treats the labels of the chosen rows as known, and adds the row whose label would then be most
    informative:

    .. math:: I[y_1, \dots, y_B; w] = \sum_b I[y_b; w \mid y_1, \dots, y_{b-1}], \qquad
              I[y; w \mid \mathbf y] = \mathbb E_{\mathbf y} H[y \mid \mathbf y] - \mathbb E_w H[y \mid w].

    The expectation is over the labels :math:`\mathbf y` of the chosen rows. The expectation is exact if these labels
    have at most `num_combinations` combinations. If there are more, this number of combinations is drawn by systematic
    sampling. With exact expectations, the chosen rows have at least 1 - 1/e times the information of the best batch.

    With S draws, labels tell at most log S nats about the weights. When the information comes close to log S, further
    rows are arbitrary, so take many draws for large batches.

    Args:
        pool: Prediction of classes with `keep_draws`, or logits of shape (S, N, C).
        num_rows: Number of rows to choose, B.
        num_combinations: Largest number of combinations of labels to consider. Time and memory are proportional to this
            number.
        seed: Seed of the sampled combinations; with ``None``, a seed is drawn.

    Returns:
        Indices of the chosen rows in the order of choice, and information in nats, each of shape (B,). Entry b of the
        information is what the first b labels tell about the weights.

    Raises:
        ValueError: If there are fewer rows than `num_rows`, fewer than two draws, or several outputs for each row, if
            logits are not finite, or if draws were not kept.

    References:
        Kirsch, van Amersfoort and Gal (2019), BatchBALD, https://arxiv.org/abs/1906.08158; Minoux (1978), Accelerated
        Greedy Algorithms for Maximizing Submodular Set Functions.

    Example:
        >>> import torch
        >>> from pyro_bnn import acquisition
        >>> first = torch.tensor([[9.0, 0.0], [9.0, 0.0], [0.0, 9.0], [0.0, 9.0]])
        >>> second = torch.tensor([[3.0, 0.0], [0.0, 3.0], [3.0, 0.0], [0.0, 3.0]])
        >>> pool = torch.stack([first, first, second], 1)  # two rows are alike
        >>> acquisition.batch_bald(pool, 2)
        (tensor([0, 2]), tensor([0.6919, 1.1942]))
    """
    logits = class_draws("pool", pool)
    num_rows = _checks.at_least("num_rows", num_rows, 1)
    if num_rows > logits.shape[1]:
        raise ValueError(f"`num_rows` must be at most the {logits.shape[1]} rows of `pool`, got {num_rows}.")
    limit = _checks.at_least("num_combinations", num_combinations, 1)
    _checks.in_memory("num_combinations", limit, 8 * max(len(logits), logits.shape[2]))
    with seeded(seed, logits.device):
        offsets = torch.rand(num_rows, dtype=torch.double, device=logits.device)
    gains = by_rows(lambda part: mutual_information(part.double()), logits)
    known = _Labels.none(logits)
    rows, information = [], []
    for offset in offsets:
        row = known.most_informative(logits, gains)
        information.append(gains[row].clone())
        known = known.joined(probs_of("pool", logits[:, row]), limit, offset)
        rows.append(row)
        gains[row] = -torch.inf  # never again
    dtype = torch.promote_types(logits.dtype, torch.float32)
    return torch.stack(rows), torch.stack(information).cumsum(0).to(dtype)


@dataclass(frozen=True)
class _Labels:
    probs: Tensor  # probability of each combination, shape (K,)
    draws: Tensor  # probability of each draw given the combination, shape (K, S)
    num_classes: int  # number of labels of a row, C

    @classmethod
    def none(cls, logits: Tensor) -> "_Labels":
        """Return the single, empty combination of no labels, for which all draws are equally probable."""
        return cls(
            torch.ones(1, dtype=torch.double, device=logits.device),
            torch.full((1, len(logits)), 1 / len(logits), dtype=torch.double, device=logits.device),
            logits.shape[2],
        )

    def most_informative(self, logits: Tensor, gains: Tensor) -> Tensor:
        """Return the row with the largest gain. `gains` has upper bounds, some of which this call makes exact."""
        order = gains.argsort(descending=True)[: int(gains.isfinite().sum())]
        best, largest = order[0], -torch.inf
        for rows in order.split(max(NUMBERS // (max(self.draws.shape) * logits.shape[2]), 1)):
            if float(gains[rows[0]]) <= largest:
                break
            gains[rows] = self.gain(probs_of("pool", logits[:, rows]))
            top = gains[rows].argmax()
            if float(gains[rows[top]]) > largest:
                best, largest = rows[top], float(gains[rows[top]])
        return best

    def gain(self, probs: Tensor) -> Tensor:
        """Return the mutual information of each row's label and the draw, shape (N,). `probs` are (S, N, C)."""
        probs = probs.flatten(1)  # (S, N C)
        uncertain = self.probs @ torch.special.entr(self.draws @ probs)
        by_draw = self.probs @ self.draws @ torch.special.entr(probs)
        return (uncertain - by_draw).view(-1, self.num_classes).sum(-1)

    def joined(self, probs: Tensor, limit: int, offset: Tensor) -> "_Labels":
        """Extend each combination by each label of one more row; if there are more than `limit`, draw `limit`."""
        joint = (self.probs[:, None] * (self.draws @ probs)).flatten()  # (K C,)
        if len(joint) <= limit:
            chosen = joint.nonzero()[:, 0]
            weights = joint[chosen]
        else:
            steps = (torch.arange(limit, device=joint.device) + offset) / limit
            edges = joint.cumsum(0)
            chosen = torch.searchsorted(edges, steps * edges[-1], right=True).clamp_max(int(joint.nonzero().max()))
            weights = torch.full_like(steps, 1 / limit)
        draws = self.draws[chosen // self.num_classes] * probs.mT[chosen % self.num_classes]
        return _Labels(weights, draws / draws.sum(1, keepdim=True), self.num_classes)
