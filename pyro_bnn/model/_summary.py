"""What a model says of itself."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from .._summary import Summary, counted, kind_of, shape_row
from ..likelihoods import Likelihood
from ..priors import WeightPrior


def summary_of(
    parts: tuple[nn.Module, WeightPrior, Likelihood], num_data: int, like: Tensor, latents: Mapping[str, torch.Size]
) -> Summary:
    """A few lines about a model.

    Args:
        parts: Its network, prior and likelihood.
        num_data: Number of data points.
        like: A tensor with its device and dtype.
        latents: Shapes of its latent variables, except those of the likelihood.
    """
    network, prior, likelihood = parts
    learned = {f"net.{name}": value for name, value in network.named_parameters()}
    learned |= {f"likelihood.{name}": value for name, value in likelihood.named_parameters()}
    rows = [shape_row(name, shape, "random") for name, shape in latents.items()]
    rows += [shape_row(name, value.shape, "learned") for name, value in learned.items()]
    random = counted(sum(shape.numel() for shape in latents.values()), "random number")
    title = f"BayesianModel of {type(network).__name__}: {random} in {counted(len(latents), 'site')}"
    title += f", {counted(sum(map(Tensor.numel, learned.values())), 'learned number')}" if learned else ""
    data = f"{counted(num_data, 'data point')}, {kind_of(like)}"
    return Summary(title, [f"prior {prior!r}", f"likelihood {likelihood!r}; {data}"], rows)
