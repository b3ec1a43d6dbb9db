"""What the two directions of the KL divergence prefer
======================================================

A Gaussian q is fitted to the mixture p = 0.5 N(0, 0.4) + 0.5 N(3, 1) by minimising KL(q || p), and by minimising
KL(p || q). The script prints mean, standard deviation and both divergences of each fit, with standard errors, and
writes `kl_divergence.png`.

N(m, s) has mean m and standard deviation s. The reverse divergence KL(q || p), used in variational inference, is large
if q has probability where p has none. So q stays in the narrow mode if q starts there. If q starts in the broad mode,
it stays near this mode, and becomes wide only because the two modes overlap. The forward divergence KL(p || q) is large
if q misses a part of p. It is smallest if q has the mean and variance of p. Before the fits, the script compares a
Monte Carlo estimate of a divergence with its closed form.
"""

import argparse
from collections.abc import Callable
from pathlib import Path

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


def as_mixture(q: dist.Normal) -> dist.MixtureSameFamily:
    """Return a Gaussian as a mixture with one component.

    The divergence of two mixtures has no closed form, so `kl.divergence`
    estimates it.
    """
    return dist.MixtureSameFamily(
        dist.Categorical(torch.ones(1)), q.expand((1,))
    )


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
    loc, log_scale = (
        torch.tensor(start, requires_grad=True),
        torch.tensor(0.0, requires_grad=True),
    )
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
# Picture
# -------


def show(result: kl.Divergence) -> str:
    return f"{result.value:7.4f} ± {result.standard_error:.4f}"


def picture(fits: dict[str, dist.Normal], path: Path) -> None:
    grid = torch.linspace(-3, 7, 500)
    ax = plotting.new_axes(1, 1, size=(5, 3))[0, 0]
    density = TARGET.log_prob(grid).exp()
    ax.fill_between(
        grid.numpy(),
        density.numpy(),
        color="0.85",
        label="p = 0.5 N(0, 0.4) + 0.5 N(3, 1)",
    )
    for name, q in fits.items():
        label = (
            f"{name.replace(', started', ',')}: N({q.mean:.2f}, {q.stddev:.2f})"
        )
        ax.plot(grid.numpy(), q.log_prob(grid).exp().numpy(), label=label)
    ax.set(xlabel="w", ylabel="density", ylim=(0, 1.4))
    ax.legend(loc="upper left")
    plotting.save(ax, path)


# %%
# Run
# ---


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--steps",
        type=int,
        default=500,
        help="optimisation steps of each fit (default: %(default)s)",
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=Path(),
        help="folder for the picture (default: %(default)s)",
    )
    parser.add_argument(
        "--seed",
        type=int,
        default=0,
        help="seed of all random numbers (default: %(default)s)",
    )
    arguments = parser.parse_args()
    torch.manual_seed(arguments.seed)
    arguments.out.mkdir(parents=True, exist_ok=True)

    a, b = dist.Normal(0.5, 1.5), dist.Normal(0.0, 1.0)
    estimate = kl.divergence(as_mixture(a), as_mixture(b), num_samples=100_000)
    print(
        f"two Gaussians: closed form {kl.divergence(a, b).value:.4f}, Monte "
        f"Carlo {show(estimate)} nats"
    )
    print(f"swapped:       closed form {kl.divergence(b, a).value:.4f}\n")

    fits = {
        "reverse KL(q || p), started at 0": fit(reverse, 0.0, arguments.steps),
        "reverse KL(q || p), started at 3": fit(reverse, 3.0, arguments.steps),
        "forward KL(p || q)": fit(forward, 0.0, arguments.steps),
    }
    print(
        "fit of q by minimising               mean     sd   KL(q || p), nats  "
        " KL(p || q), nats"
    )
    for name, q in fits.items():
        both = "   ".join(
            show(divergence(q, num_samples=100_000))
            for divergence in (reverse, forward)
        )
        print(f"{name:34} {q.mean:6.3f} {q.stddev:6.3f}   {both}")
    print(
        f"exact minimum of the forward KL    {TARGET.mean:6.3f} "
        f"{TARGET.stddev:6.3f}   (the moments of p)"
    )
    with plotting.style():
        picture(fits, arguments.out / "kl_divergence.png")


if __name__ == "__main__":
    main()

# %%
# *By the reverse divergence, q stays at the peak of p (grey) at which it
# starts. By the forward divergence, q covers both peaks and the gap.*
