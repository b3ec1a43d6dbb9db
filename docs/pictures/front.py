"""Make the first picture of the README and the landing page, which shows where a Bayesian neural network is uncertain.

Left: a curve that was measured in two intervals only; the background is grey elsewhere. Chains (MCLMC), the default of
`fit`, draw networks; where there are no data, they disagree, and their band contains the true curve in the gap and in
most other places. A plain network (MAP) is one curve. Right: chains of a network trained on garments (FashionMNIST)
classify new trousers and a digit (MNIST), a kind that they have never seen. 100 drawn networks vote: they agree on the
trousers, and disagree on the digit. Each has the median entropy of the test images of its class. Without FashionMNIST
in `--data`, scikit-learn's digits are used instead: 0 to 6 are known, 7 to 9 are not. The script writes `front.png`,
and its version for dark pages, `front_dark.png`.
"""

import argparse
import sys
from pathlib import Path

import torch
from matplotlib.figure import Figure
from PIL import Image
from torch import Tensor, nn

import pyro_bnn as pb
from pyro_bnn import data, metrics, nets, plotting

sys.path.append(str(Path(__file__).parents[1] / "_extensions"))
from _dark import darken

GAP, NOISE, PRIOR = 0.5, 2.0, 4.0
ROWS = 1000
"""Images for training."""

GRID = torch.linspace(-1, 1, 201)[:, None]
TRUTH = 10 * torch.sin(2 * torch.pi * GRID.flatten())
BAND = "#A6CFE8"
CHAINS, PLAIN = "Bayesian: mean \N{PLUS-MINUS SIGN} 2 sd", "plain network"
CLASS = 1
"""Of the known image: trousers."""

BLUE, VERMILION, GREEN, *_ = plotting.PALETTE


def curve(
    options: argparse.Namespace,
) -> tuple[tuple[Tensor, Tensor], dict[str, pb.uncertainty.RegressionPrediction]]:
    """Return the data of the curve, and the predictions of chains (MCLMC) and of a plain network."""
    x, y = data.regression_problem(noise=NOISE, gap=GAP, seed=options.seed)
    torch.manual_seed(options.seed)
    scale = nets.Standardize(torch.zeros(1), torch.full((1,), 0.25))
    net = nets.mlp([1, 20, 1], activation=nn.Tanh, first=[scale])
    model = pb.BayesianModel(
        net,
        prior=pb.NormalPrior(PRIOR),
        likelihood=pb.GaussianLikelihood(NOISE),
        num_data=len(x),
    )
    plain = {"method": "svi", "guide": pb.DeltaGuide(model)}
    predictions = {}
    for name, settings in {CHAINS: {}, PLAIN: plain}.items():
        posterior = pb.fit(model, (x, y), seed=options.seed, **settings)
        print(f"{name}: {posterior.status}", flush=True)
        predictions[name] = pb.predict(model, posterior, GRID, seed=options.seed)
    low, high = band_of(predictions[CHAINS])
    gap = GRID.flatten().abs() < GAP / 2
    inside = ((low < TRUTH) & (high > TRUTH))[gap].float().mean()
    print(f"the band contains the true curve at {float(inside):.0%} of the places in the gap", flush=True)
    return (x, y), predictions


def band_of(prediction: pb.uncertainty.RegressionPrediction) -> tuple[Tensor, Tensor]:
    """Two epistemic standard deviations on each side of the mean."""
    mean, sd = prediction.mean.flatten(), prediction.epistemic.sqrt().flatten()
    return mean - 2 * sd, mean + 2 * sd


def load(root: Path | None) -> tuple[data.Images, Tensor, str, str]:
    """Known images, unknown images, and names for both."""
    try:
        images = data.load_images("fashion-mnist", root=root)
        digits = data.load_images("mnist", root=root)
        return (
            images,
            digits.x_test[digits.y_test == 3],
            "a known garment:\nthe networks agree",
            "an unknown digit:\nthey disagree",
        )
    except FileNotFoundError as error:
        print(
            f"{error}\nscikit-learn's digits are used instead: 0 to 6 are known, 7 to 9 are not.",
            flush=True,
        )
    images = data.load_images("digits")
    train, test = images.y_train < 7, images.y_test < 7
    tensors = (
        images.x_train[train],
        images.y_train[train],
        images.x_test[test],
        images.y_test[test],
    )
    return (
        data.Images(*tensors, images.classes[:7]),
        images.x_test[~test],
        "0 to 6, known:\nthe networks agree",
        "7 to 9, unknown:\nthey disagree",
    )


def small(images: Tensor) -> Tensor:
    """Images of 28 x 28 pixels at half their size, for which chains are fast; others as they are."""
    return nn.functional.avg_pool2d(images, max(1, images.shape[-1] // 14))


def votes(options: argparse.Namespace, known: tuple) -> tuple[Tensor, Tensor, tuple[str, ...], list[str]]:
    """Images, votes, classes and titles."""
    images, unknown, *kinds = known
    x, y = small(images.x_train[:ROWS]), images.y_train[:ROWS]
    torch.manual_seed(options.seed)
    first = [nets.Standardize.of(x, floor=0.1), nn.Flatten()]
    model = pb.BayesianModel(
        nets.mlp([x[0].numel(), 16, len(images.classes)], first=first),
        prior=pb.NormalPrior(0.3),
        likelihood=pb.CategoricalLikelihood(),
        num_data=len(x),
    )
    posterior = pb.fit(model, (x, y), progress=True, seed=options.seed)
    print(f"votes: {posterior.status}", flush=True)
    seen, unseen = (
        pb.predict(model, posterior, small(part), num_samples=100, seed=options.seed)
        for part in (images.x_test, unknown)
    )
    detection = metrics.ood_scores(seen.total, unseen.total)
    print(
        f"votes: accuracy {metrics.accuracy(seen.probs, images.y_test):.1%} on "
        "known images; the entropy detects "
        f"unknown ones with AUROC {detection.auroc:.3f} ± "
        f"{detection.auroc_standard_error:.3f}",
        flush=True,
    )
    rows = (images.y_test == CLASS).nonzero().flatten()
    a = int(rows[seen.total[rows].argsort()[len(rows) // 2]])  # of median entropy, as b
    b = int(unseen.total.argsort()[len(unseen) // 2])
    ballots = torch.stack([seen.votes[a], unseen.votes[b]])
    return (
        torch.stack([images.x_test[a], unknown[b]]),
        ballots,
        images.classes,
        kinds,
    )


def draw(
    xy: tuple[Tensor, Tensor],
    curves: dict,
    images: Tensor,
    ballots: Tensor,
    classes,
    titles,
) -> Figure:
    figure = Figure(figsize=(7, 2.75), layout="constrained")
    left, right = figure.subfigures(1, 2, width_ratios=(1.05, 1))
    ax, x = left.subplots(), GRID.flatten()
    ends = torch.stack(band_of(curves[CHAINS]))
    ax.fill_between(x, *ends, facecolor=BAND, linewidth=0)
    ax.plot(x, ends.T, "-", color=BLUE, linewidth=0.8)
    # shows a band in the legend
    band, *_ = ax.fill([], [], facecolor=BAND, edgecolor=BLUE, linewidth=0.8)
    mean, *_ = ax.plot(x, curves[CHAINS].mean.flatten(), "-", color=BLUE, linewidth=1.6)
    plain = curves[PLAIN].mean.flatten()
    ax.plot(x, plain, "--", color=GREEN, linewidth=1.3, label=PLAIN)
    ax.plot(x, TRUTH, "-", color=VERMILION, linewidth=1.1, label="truth")
    ax.plot(*xy, "k.", ms=4, mec="white", mew=0.3, label="data")
    ax.set(
        xlabel="x",
        ylabel="y",
        xlim=(-1, 1),
        ylim=(-27, 23),
        xticks=(-1, -0.5, 0, 0.5, 1),
    )
    ax.set_title(
        "Where there are no data, the band is wide,\nand a plain network gives no warning",
        fontsize=8,
    )
    for start, end in (
        (-1, float(xy[0].min())),
        (-GAP / 2, GAP / 2),
        (float(xy[0].max()), 1),
    ):
        ax.axvspan(start, end, color="0.93", linewidth=0, zorder=0)
        ax.text(
            (start + end) / 2,
            -25.5,
            "no data",
            ha="center",
            fontsize=7,
            color="0.35",
        )
    handles, labels = ax.get_legend_handles_labels()
    entries = [(band, mean), *handles], [CHAINS, *labels]
    left.legend(*entries, ncols=4, loc="outside lower left", handlelength=1.1, columnspacing=0.5, handletextpad=0.4)
    axes = right.subplots(2, 2, height_ratios=(1, 1.45))
    plotting.vote_histograms(images, ballots, classes, titles=titles, axes=axes)
    axes[1, 0].set_ylabel("")
    for ax in axes[1]:
        ax.set_xticks([0, 50, 100])
    # else the 100 of a panel would touch the 0 of the next one
    figure.get_layout_engine().set(wspace=0.05)
    for title in (ax.title for ax in axes[0]):
        title.set_fontsize(8)
    return figure


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--data",
        type=Path,
        help="folder of the images (default: $PYRO_BNN_DATA, or data)",
    )
    parser.add_argument("--out", type=Path, default=Path(), help="folder (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="seed (default: %(default)s)")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    xy, curves = curve(options)
    with plotting.style():
        figure = draw(xy, curves, *votes(options, load(options.data)))
    path = options.out / "front.png"
    plotting.save(figure.axes[0], path)
    # few colours make a small file; means of clusters keep greys grey
    with Image.open(path) as picture:
        small = picture.convert("RGB").quantize(128, kmeans=2, dither=Image.Dither.NONE)
    small.save(path, optimize=True)
    dark = options.out / "front_dark.png"
    darken(path, dark)
    with Image.open(dark) as picture:  # pages of other hosts are dark in other ways
        picture.save(dark, optimize=True, transparency=picture.getpixel((0, 0)))
    print(f"picture: {path}")


if __name__ == "__main__":
    main()
