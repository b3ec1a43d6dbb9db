"""A contextual bandit by Thompson sampling
========================================

Thompson sampling, which also tries arms of which the posterior is unsure, is compared with a greedy rule and with
random choices. The script prints the regret of a step: the expected reward of the best arm minus that of the chosen
arm.

At each step, the program sees a context of two numbers, chooses one of five arms, and sees only the reward of this arm.
The first arm always pays 0.5. Each of the other four pays 2 near one corner of the square of contexts, and 0 elsewhere.
Rewards have noise. Thompson sampling draws one network for each context, and takes the arm that is best in this
network. The greedy rule takes the arm with the largest expected reward. Both rules fit the same network to all rewards
seen so far, with NUTS, after each batch of contexts. The picture `bandit.png` shows the regret summed over the steps.
"""

import argparse
import warnings
from pathlib import Path

import torch
from torch import Tensor, nn

import pyro_bnn as pb
from pyro_bnn import plotting

NUM_ARMS, NOISE = 5, 0.3
CENTERS, RADIUS = (
    torch.tensor([[0.2, 0.2], [0.2, 0.8], [0.8, 0.2], [0.8, 0.8]]),
    0.25,
)
RULES = ("random", "greedy", "Thompson")


# %%
# Rewards
# -------


def expected_rewards(contexts: Tensor) -> Tensor:
    """The expected reward of each arm, shape (N, arms)."""
    is_near = torch.cdist(contexts, CENTERS) < RADIUS
    return torch.cat([torch.full((len(contexts), 1), 0.5), 2.0 * is_near], 1)


# %%
# Fit
# ---


def fit(
    contexts: Tensor, arms: Tensor, rewards: Tensor, seed: int
) -> tuple[pb.BayesianModel, pb.Posterior]:
    """A network with one output for each arm, and its posterior. The rewards of
    arms that were not chosen have weight 0.
    """
    likelihood = pb.GaussianLikelihood(NOISE).with_row_weights()
    seen = nn.functional.one_hot(arms, NUM_ARMS)
    targets = likelihood.join_weights(seen * rewards[:, None], seen)
    torch.manual_seed(seed)
    scale = pb.nets.Standardize(torch.full((2,), 0.5), torch.full((2,), 0.2))
    net = pb.nets.mlp([2, 20, NUM_ARMS], activation=nn.Tanh, first=[scale])
    prior = pb.PriorByName(
        {"net.3.*": pb.FanInNormalPrior(1.5), "**": pb.NormalPrior(1.0)}
    )
    model = pb.BayesianModel(
        net, prior=prior, likelihood=likelihood, num_data=len(contexts)
    )
    lengths = {
        "num_samples": 50,
        "num_warmup": 80,
        "num_chains": 2,
        "max_tree_depth": 5,
    }
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", pb.ConvergenceWarning
        )  # short chains are enough to choose arms
        posterior = pb.fit_nuts(
            model, (contexts, targets), **lengths, compile="auto", seed=seed
        )
    return model, posterior


# %%
# Rules
# -----


def choose(
    rule: str, data: tuple[Tensor, Tensor, Tensor], contexts: Tensor, seed: int
) -> Tensor:
    """The arms for new contexts."""
    if rule == "random" or not len(data[0]):
        return torch.randint(NUM_ARMS, contexts.shape[:1])
    model, posterior = fit(*data, seed)
    rewards = model.output_given(
        posterior.sample(100), contexts
    )  # (S, N, arms)
    if rule == "greedy":
        return rewards.mean(0).argmax(1)
    draws = torch.randint(
        len(rewards), contexts.shape[:1]
    )  # one network for each context
    return rewards[draws, torch.arange(len(contexts))].argmax(1)


def regrets(rule: str, seed: int, options: argparse.Namespace) -> Tensor:
    """The regret of each step."""
    torch.manual_seed(seed)
    data = torch.empty(0, 2), torch.empty(0, dtype=torch.long), torch.empty(0)
    found = []
    for batch in range(options.batches):
        contexts = torch.rand(options.size, 2)
        arms = choose(rule, data, contexts, 1000 * seed + batch)
        expected = expected_rewards(contexts)
        chosen = expected.gather(1, arms[:, None])[:, 0]
        found.append(expected.amax(1) - chosen)
        news = contexts, arms, chosen + NOISE * torch.randn(len(chosen))
        data = tuple(torch.cat(pair) for pair in zip(data, news, strict=True))
    return torch.cat(found)


# %%
# Run
# ---


@plotting.style()
def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--batches",
        type=int,
        default=12,
        help="number of batches of contexts (default: %(default)s)",
    )
    parser.add_argument(
        "--size",
        type=int,
        default=10,
        help="contexts in a batch (default: %(default)s)",
    )
    parser.add_argument(
        "--seeds",
        type=int,
        default=5,
        help="number of seeds that are averaged (default: %(default)s)",
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=Path(),
        help="folder for the picture (default: %(default)s)",
    )
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    ax = plotting.new_axes(1, 1, size=(5, 3))[0, 0]
    print(
        f"regret of a step, over {options.batches} batches of {options.size} "
        f"contexts and {options.seeds} seeds:"
    )
    for rule in RULES:
        found = torch.stack(
            [regrets(rule, seed, options) for seed in range(options.seeds)]
        )
        mean, error = found.mean(1), found.mean(1).std() / len(found) ** 0.5
        late = found[:, -options.size :].mean(1)
        print(
            f"{rule:9} {float(mean.mean()):.3f} ± {float(error):.3f}, in the "
            "last batch "
            f"{float(late.mean()):.3f} ± "
            f"{float(late.std() / len(late) ** 0.5):.3f}",
            flush=True,
        )
        total = found.cumsum(1)
        steps, middle, half = (
            torch.arange(1, total.shape[1] + 1),
            total.mean(0),
            total.std(0) / len(total) ** 0.5,
        )
        ax.plot(steps, middle, label=rule)
        ax.fill_between(
            steps, middle - half, middle + half, alpha=0.2, linewidth=0
        )
    ax.set(xlabel="steps", ylim=(0, None))
    ax.set_ylabel("summed regret (bands: one standard error)")
    ax.legend()
    plotting.save(ax, options.out / "bandit.png")


if __name__ == "__main__":
    main()

# %%
# *Thompson sampling loses less and less, because it finds the arms that pay
# more. The greedy rule tries too few arms, and random choices never improve.*
