"""A posterior for BoTorch that holds the predictions of weight draws. All draws are equally probable."""

from typing import TYPE_CHECKING, Any

import torch

from ..._core.extras import optional

if TYPE_CHECKING:
    from botorch.posteriors.ensemble import EnsemblePosterior
    from botorch.sampling.get_sampler import GetSampler
    from botorch.sampling.index_sampler import IndexSampler
else:
    EnsemblePosterior = optional("botorch.posteriors.ensemble", "BoTorch", "botorch").EnsemblePosterior
    GetSampler = optional("botorch.sampling.get_sampler", "BoTorch", "botorch").GetSampler
    IndexSampler = optional("botorch.sampling.index_sampler", "BoTorch", "botorch").IndexSampler


class DrawsPosterior(EnsemblePosterior):
    """Posterior of S equally probable weight draws, whose predictions have the shape ``(*batch, S, q, m)``."""


class DrawsSampler(IndexSampler):
    """Takes each draw equally often if their number divides that of samples; BoTorch's sampler picks at random."""

    def _construct_base_samples(self, posterior: EnsemblePosterior) -> None:
        count, size = self.sample_shape.numel(), posterior.ensemble_size
        which = (2 * torch.arange(count, device=posterior.device) + 1) * size // (2 * count)
        ones = [1] * len(posterior.batch_shape)
        which = which.reshape(*self.sample_shape, *ones).expand(*self.sample_shape, *posterior.batch_shape)
        self.register_buffer("base_samples", which)


@GetSampler.register(DrawsPosterior)
def _(posterior: DrawsPosterior, sample_shape: torch.Size, *, seed: int | None = None, **_: Any) -> DrawsSampler:
    return DrawsSampler(sample_shape=sample_shape, seed=seed)
