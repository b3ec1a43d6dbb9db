"""What the two directions of the KL divergence prefer
======================================================

A Gaussian q is fitted to the mixture p = 0.5 N(0, 0.4) + 0.5 N(3, 1) by minimising KL(q || p), and by minimising
KL(p || q). The script prints mean, standard deviation and both divergences of each fit, with standard errors.

N(m, s) has mean m and standard deviation s. The reverse divergence KL(q || p), used in variational inference, is large
if q has probability where p has none. So q stays in the narrow mode if q starts there. If q starts in the broad mode,
it stays near this mode, and becomes wide only because the two modes overlap. The forward divergence KL(p || q) is large
if q misses a part of p. It is smallest if q has the mean and variance of p.
"""

import argparse
from collections.abc import Callable

import pyro.distributions as dist
import torch

from pyro_bnn import kl, plotting

TARGET = dist.MixtureSameFamily(
    dist.Categorical(torch.tensor([0.5, 0.5])),
    dist.Normal(torch.tensor([0.0, 3.0]), torch.tensor([0.4, 1.0])),
)


# %%
# Divergences
# -----------


def reverse(q: dist.Normal, num_samples: int = 500) -> kl.Divergence:
    return kl.divergence(q, TARGET, num_samples=num_samples)


def forward(q: dist.Normal, num_samples: int = 500) -> kl.Divergence:
    return kl.divergence(TARGET, q, num_samples=num_samples)


# %%
# Fit
# ---


def fit(
    objective: Callable[[dist.Normal], kl.Divergence],
    start: float,
    num_steps: int,
) -> dist.Normal:
    """Minimise a divergence over the mean and the logarithm of the standard
    deviation of a Gaussian.
    """
    loc = torch.tensor(start, requires_grad=True)
    log_scale = torch.tensor(0.0, requires_grad=True)
    optimizer = torch.optim.Adam([loc, log_scale], lr=0.1)
    schedule = torch.optim.lr_scheduler.ExponentialLR(
        optimizer, 1e-2 ** (1 / num_steps)
    )
    for _ in range(num_steps):
        optimizer.zero_grad()
        objective(dist.Normal(loc, log_scale.exp())).value.backward()
        optimizer.step()
        schedule.step()
    return dist.Normal(loc.detach(), log_scale.detach().exp())


# %%
# Run
# ---


def show(result: kl.Divergence) -> str:
    return f"{result.value:7.4f} ± {result.standard_error:.4f}"


def draw(fits: dict[str, dist.Normal]) -> None:
    grid = torch.linspace(-3, 7, 500)
    ax = plotting.new_axes(1, 1, size=("page", 2.7))[0, 0]
    ax.fill_between(
        grid, TARGET.log_prob(grid).exp(), color="0.85", label="mixture p"
    )
    for name, q in fits.items():
        label = f"{name}: N({q.mean:.2f}, {q.stddev:.2f})"
        ax.plot(grid, q.log_prob(grid).exp(), label=label)
    ax.set(xlabel="w", ylabel="density", ylim=(0, 1.35))
    ax.legend(loc="upper right")
    plotting.save(ax, "kl_divergence.png")


@plotting.style()
def main(steps: int) -> None:
    torch.manual_seed(0)
    fits = {
        "reverse KL, from 0": fit(reverse, 0.0, steps),
        "reverse KL, from 3": fit(reverse, 3.0, steps),
        "forward KL": fit(forward, 0.0, steps),
    }
    print("minimised              mean     sd   KL(q || p), nats  ", end=" ")
    print("KL(p || q), nats")
    for name, q in fits.items():
        both = "   ".join(
            show(divergence(q, num_samples=100_000))
            for divergence in (reverse, forward)
        )
        print(f"{name:20} {q.mean:6.3f} {q.stddev:6.3f}   {both}")
    print(f"{'moments of p':20} {TARGET.mean:6.3f} {TARGET.stddev:6.3f}")
    draw(fits)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=500, help="of each fit")
    main(**vars(parser.parse_args()))

# %%
# *By the reverse divergence, q ends at or near the peak of p (grey) at which
# it starts. By the forward divergence, q covers both peaks and the gap.*
