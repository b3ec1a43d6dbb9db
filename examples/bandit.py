"""A contextual bandit by Thompson sampling
========================================

Thompson sampling, which also tries arms about which the posterior is unsure, is compared with a greedy rule and with
random choices. The script prints the regret of a step: the expected reward of the best arm minus that of the chosen
arm.

At each step, the program sees a context of two numbers, chooses one of five arms, and sees only the reward of this arm.
The first arm always pays 0.5. Each of the other four pays 2 near one corner of the square of contexts, and 0 elsewhere.
Rewards have noise. Thompson sampling draws one network for each context, and takes the arm that is best in this
network. The greedy rule takes the arm with the largest expected reward. Both rules fit the same network to all rewards
seen so far, with NUTS, after each batch of contexts.
"""

import argparse
import warnings

import torch
from torch import Tensor, nn

import pyro_bnn as pb
from pyro_bnn import plotting

NUM_ARMS, NOISE, BATCH = 5, 0.3, 10
CENTERS = torch.tensor([[0.2, 0.2], [0.2, 0.8], [0.8, 0.2], [0.8, 0.8]])
RADIUS = 0.25
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
    with warnings.catch_warnings():
        # short chains are enough to choose arms
        warnings.simplefilter("ignore", pb.ConvergenceWarning)
        posterior = pb.fit_nuts(
            model,
            (contexts, targets),
            num_samples=50,
            num_warmup=80,
            num_chains=2,
            max_tree_depth=5,
            seed=seed,
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
    draws = posterior.sample(100)
    rewards = model.output_given(draws, contexts)  # (S, N, arms)
    if rule == "greedy":
        return rewards.mean(0).argmax(1)
    # Thompson sampling: one network for each context
    networks = torch.randint(len(rewards), contexts.shape[:1])
    return rewards[networks, torch.arange(len(contexts))].argmax(1)


def regrets(rule: str, seed: int, num_batches: int) -> Tensor:
    """The regret of each step."""
    torch.manual_seed(seed)
    data = torch.empty(0, 2), torch.empty(0, dtype=torch.long), torch.empty(0)
    found = []
    for batch in range(num_batches):
        contexts = torch.rand(BATCH, 2)
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


def with_error(values: Tensor) -> str:
    error = values.std() / len(values) ** 0.5
    return f"{float(values.mean()):.3f} ± {float(error):.3f}"


@plotting.style()
def main(batches: int, seeds: int) -> None:
    print(
        f"regret of a step, over {batches} batches of {BATCH} contexts and "
        f"{seeds} seeds:"
    )
    ax = plotting.new_axes(1, 1, size=("page", 2.7))[0, 0]
    for rule in RULES:
        found = torch.stack(
            [regrets(rule, seed, batches) for seed in range(seeds)]
        )
        mean, late = found.mean(1), found[:, -BATCH:].mean(1)
        print(f"{rule:9} {with_error(mean)}, last batch {with_error(late)}")
        total = found.cumsum(1)
        middle, half = total.mean(0), total.std(0) / seeds**0.5
        steps = torch.arange(1, len(middle) + 1)
        ax.plot(steps, middle, label=rule)
        ax.fill_between(
            steps, middle - half, middle + half, alpha=0.2, linewidth=0
        )
    ax.set(xlabel="step", ylabel="summed regret", ylim=(0, None))
    ax.legend()
    plotting.save(ax, "bandit.png")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--batches", type=int, default=12, help="of contexts")
    parser.add_argument("--seeds", type=int, default=5, help="to average over")
    main(**vars(parser.parse_args()))

# %%
# *Thompson sampling loses less and less, because it finds the arms that pay
# more. The greedy rule tries too few arms, and random choices never improve.
# Bands are one standard error.*
