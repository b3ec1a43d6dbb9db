"""What a Bayesian network knows that it does not know, in one picture: the first of the README.

Left: a curve with a gap in its data. NUTS draws from the exact posterior, and a mean-field Gaussian approximates it;
both bands widen in the gap and outside, that of mean-field too little. Right: a network trained on FashionMNIST
garments looks at a garment and at an MNIST digit, which it has never seen. Each of 100 networks drawn from its posterior
votes: on the garment they agree, on the digit they do not. Neither image was picked by hand: each is the one whose
predictive entropy is the median of its test set. Without FashionMNIST in `--data`, scikit-learn's digits stand in: 0 to 6
are known, 7 to 9 are not. Leaves `front.png`.
"""

import argparse
import functools
import time
import warnings
from pathlib import Path

import torch
from torch import Tensor, nn

import pyro_bnn as pb
from pyro_bnn import data, metrics, nets, plotting

GAP, NOISE = 0.5, 2.0
GRID = torch.linspace(-1, 1, 201)[:, None]
BLUE, VERMILION, *_ = plotting.PALETTE
Known = tuple[data.Images, Tensor, str, str]


def optimizer(lr: float, num_epochs: int):
    schedule = functools.partial(torch.optim.lr_scheduler.CosineAnnealingLR, T_max=num_epochs)
    return pb.scheduled(functools.partial(torch.optim.Adam, lr=lr), schedule)


def curve(options: argparse.Namespace) -> tuple[tuple[Tensor, Tensor], dict[str, pb.uncertainty.RegressionPrediction]]:
    """The data of the curve, and its predictions by NUTS and by a mean-field Gaussian."""
    x, y = data.regression_problem(noise=NOISE, gap=GAP, seed=options.seed)
    torch.manual_seed(options.seed)
    scale = nets.Standardize(torch.zeros(1), torch.full((1,), 0.25))
    net = nets.mlp([1, 20, 1], activation=nn.Tanh, first=[scale])
    model = pb.BayesianModel(net, prior=pb.NormalPrior(2.0), likelihood=pb.GaussianLikelihood(NOISE), num_data=len(x))
    guide = pb.MeanFieldGuide(model, init=pb.NetworkInit(scale=0.05))
    steps = options.steps
    mean_field = pb.fit_svi(model, guide, (x, y), optimizer=optimizer(0.02, steps), num_epochs=steps, seed=options.seed)
    print(f"mean-field: {mean_field.status}", flush=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", pb.ConvergenceWarning)  # printed as the status
        lengths = {"num_chains": 8, "num_warmup": options.draws, "num_samples": options.draws, "max_tree_depth": 7}
        nuts = pb.fit_nuts(model, x, y, progress=True, seed=options.seed, **lengths)
    print(nuts.status, flush=True)
    posteriors = {"NUTS": nuts, "mean-field": mean_field}
    predictions = {
        name: pb.predict(model, posterior, GRID, seed=options.seed).as_regression()
        for name, posterior in posteriors.items()
    }
    gap = GRID.flatten().abs() < GAP / 2
    inside = {name: float(p.epistemic.sqrt().flatten()[gap].mean()) for name, p in predictions.items()}
    print("in the gap, epistemic sd:", ", ".join(f"{name} {value:.2f}" for name, value in inside.items()))
    return (x, y), predictions


def load(root: Path | None) -> Known:
    """Known images, unknown ones, and what to call both."""
    try:
        images = data.load_images("fashion-mnist", root=root)
        return images, data.load_images("mnist", root=root).x_test, "a garment", "a digit"
    except FileNotFoundError as error:
        print(f"{error}\nscikit-learn's digits stand in: 0 to 6 are known, 7 to 9 are not.", flush=True)
    images = data.load_images("digits")
    train, test = images.y_train < 7, images.y_test < 7
    tensors = (images.x_train[train], images.y_train[train], images.x_test[test], images.y_test[test])
    return data.Images(*tensors, images.classes[:7]), images.x_test[~test], "a 0 to 6", "a 7, 8 or 9"


def median(prediction: pb.uncertainty.ClassificationPrediction) -> int:
    """Number of the input whose entropy is the median."""
    return int(prediction.total.argsort()[len(prediction) // 2])


def votes(options: argparse.Namespace, known: Known) -> tuple[Tensor, Tensor, tuple[str, ...], list[str]]:
    """Images, votes, classes and titles."""
    images, unknown, *kinds = known
    torch.manual_seed(options.seed)
    first = [nets.Standardize.of(images.x_train, floor=0.1), nn.Flatten()]
    net = nets.mlp([images.x_train[0].numel(), 200, len(images.classes)], first=first)
    rows = min(len(images.x_train), 20_000)
    x, y = images.x_train[:rows], images.y_train[:rows]
    model = pb.BayesianModel(net, prior=pb.NormalPrior(0.1), likelihood=pb.CategoricalLikelihood(), num_data=rows)
    posterior = pb.fit_svi(
        model,
        pb.MeanFieldGuide(model, init=pb.NetworkInit(prior_fraction=0.1)),
        (x, y),
        optimizer=optimizer(2e-3, options.epochs),
        num_epochs=options.epochs,
        batch_size=128,
        kl_weight=0.3,
        progress=True,
        seed=options.seed,
    )
    seen, unseen = (
        pb.predict(model, posterior, part, num_samples=100, seed=options.seed).as_classification()
        for part in (images.x_test, unknown)
    )
    detection = metrics.ood_scores(seen.total, unseen.total)
    print(
        f"votes: accuracy {metrics.accuracy(seen.probs, images.y_test):.1%} on known images; the entropy tells unknown "
        f"ones with AUROC {detection.auroc:.3f} ± {detection.auroc_standard_error:.3f}",
        flush=True,
    )
    a, b = median(seen), median(unseen)
    titles = [f"{kinds[0]}: known", f"{kinds[1]}: unknown"]
    return (
        torch.stack([images.x_test[a], unknown[b]]),
        torch.stack([seen.votes[a], unseen.votes[b]]),
        images.classes,
        titles,
    )
