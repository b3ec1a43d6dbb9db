"""SVI compared with NUTS
=========================

The data are 92 noisy points of 10 sin(2 pi x), none of them near 0. NUTS draws from the exact posterior; a mean-field
and a full-rank Gaussian approximate it. The script prints the diagnostics of the chains: the predictions have
converged; the weights are identified only up to permutations and signs, and need not converge. Then the script prints
how far each approximation is from NUTS where there are data, in the gap, and outside. The mean-field Gaussian is too
certain in the gap. The script writes `nuts_comparison.png`, `nuts_comparison.csv` and the chains, `chains.safetensors`.
The script takes about a minute and a half; `--compile` draws in C, several times faster, and needs a C compiler.
"""

import argparse
import functools
import warnings
from pathlib import Path

import torch
from pyro.infer.autoguide import AutoMultivariateNormal
from torch import nn

import pyro_bnn as pb
from pyro_bnn import nets, plotting

GAP, NOISE = 0.5, 2.0


def make_model(num_data: int, seed: int) -> pb.BayesianModel:
    torch.manual_seed(seed)
    scale = nets.Standardize(torch.zeros(1), torch.full((1,), 0.25))
    net = nets.mlp([1, 20, 1], activation=nn.Tanh, first=[scale])
    return pb.BayesianModel(
        net,
        prior=pb.NormalPrior(2.0),
        likelihood=pb.GaussianLikelihood(NOISE),
        num_data=num_data,
    )


def fit(
    model: pb.BayesianModel,
    guide: nn.Module,
    data: tuple[torch.Tensor, ...],
    steps: int,
    seed: int,
) -> pb.Posterior:
    posterior = pb.fit_svi(
        model,
        guide,
        data,
        optimizer=pb.optim.scheduled(
            functools.partial(torch.optim.Adam, lr=0.02),
            functools.partial(
                torch.optim.lr_scheduler.CosineAnnealingLR, T_max=steps
            ),
        ),
        num_epochs=steps,
        seed=seed,
    )
    print(f"{type(guide).__name__}: {posterior.status}", flush=True)
    return posterior


def sample(
    model: pb.BayesianModel,
    data: tuple[torch.Tensor, ...],
    options: argparse.Namespace,
) -> pb.MCMCPosterior:
    """Draw from the posterior with NUTS. Eight short chains, computed in one
    batch, take hardly longer than one chain.
    """
    run = functools.partial(
        pb.fit_nuts,
        model,
        data,
        num_samples=options.draws,
        num_warmup=options.draws,
        num_chains=8,
        max_tree_depth=7,  # longer trajectories would double the time
        progress=True,
        seed=options.seed,
    )
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", pb.ConvergenceWarning
        )  # printed as the status
        try:
            return run(compile=options.compile)
        except RuntimeError as error:
            if not options.compile:
                raise
            print(
                f"{error}\nSampling continues without --compile, which takes "
                "longer but draws from the same posterior."
            )
            return run()


def main() -> None:
    title, _, text = __doc__.split("\n", 2)  # without the line below the title
    parser = argparse.ArgumentParser(
        description=f"{title}\n{text}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--draws",
        type=int,
        default=150,
        help="draws of each chain, after equally many of warm-up "
        "(default: %(default)s)",
    )
    parser.add_argument(
        "--steps",
        type=int,
        default=3000,
        help="optimisation steps of each fit (default: %(default)s)",
    )
    parser.add_argument(
        "--compile",
        action="store_true",
        help="compile the sampler: faster for many draws",
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=Path(),
        help="folder for picture, table and chains (default: %(default)s)",
    )
    parser.add_argument(
        "--seed",
        type=int,
        default=0,
        help="seed of all random numbers (default: %(default)s)",
    )
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)

    x, y = pb.data.regression_problem(noise=NOISE, gap=GAP, seed=options.seed)
    model = make_model(len(x), options.seed)
    chains = sample(model, (x, y), options)
    print(chains.status, flush=True)
    print(
        chains.diagnose(model, torch.linspace(-1, 1, 41)[:, None]), flush=True
    )
    pb.save_posterior(chains, options.out / "chains.safetensors", model)

    mean_field = pb.MeanFieldGuide(model, init=pb.NetworkInit(scale=0.05))
    full_rank = pb.auto_guide(
        AutoMultivariateNormal, model, init=pb.NetworkInit(scale=0.02)
    )
    posteriors = {
        "nuts": chains,
        "mean-field": fit(
            model, mean_field, (x, y), options.steps, options.seed
        ),
        "full-rank": fit(model, full_rank, (x, y), options.steps, options.seed),
    }

    grid = torch.linspace(-1, 1, 201)[:, None]
    distance = grid.flatten().abs()
    regions = {
        "data": (distance >= GAP / 2) & (distance <= 0.5),
        "gap": distance < GAP / 2,
        "outside": distance > 0.5,
    }
    comparison = pb.compare(
        model, posteriors, grid, regions=regions, seed=options.seed
    )
    print(f"\n{comparison}\n")
    for pair in comparison.pairs:
        if pair.reference == "nuts" and pair.region == "gap":
            ratio = pair.scores["epistemic sd ratio"]
            print(
                f"in the gap, {pair.method} has {ratio} times the epistemic sd "
                "of NUTS"
            )
    comparison.to_csv(options.out / "nuts_comparison.csv")
    plotting.save(
        plotting.comparison(comparison, data=(x, y))[0],
        options.out / "nuts_comparison.png",
    )


if __name__ == "__main__":
    main()
