"""A network for garments that notices digits
=============================================

This example shows ensembles, votes, calibration, and the detection of unknown images.

The script trains a fully connected network (784-400-400-10 units) by SVI. It predicts the test images with single draws
of the weights, with the mean weights and with an ensemble, measures how well MNIST digits are detected as unknown, and
writes `losses.png`, `votes_known.png`, `votes_unknown.png` and `scores.png`. With `--dataset digits` (no download) the
images are scikit-learn's digits, of which 7, 8 and 9 are unknown. The command `pyro-bnn train fashion-mnist` trains the
same network, and has more options.
"""

import argparse
import functools
from pathlib import Path

import torch
from torch import Tensor, nn

import pyro_bnn as pb
from pyro_bnn import data, metrics, nets, plotting


def load(
    dataset: str, root: Path | None, download: bool
) -> tuple[data.Images, Tensor]:
    """The known images, and test images of unknown kinds."""
    images = data.load_images(dataset, root=root, download=download)
    if dataset == "fashion-mnist":
        return images, data.load_images(
            "mnist", root=root, download=download
        ).x_test
    train, test = images.y_train < 7, images.y_test < 7
    known = data.Images(
        images.x_train[train],
        images.y_train[train],
        images.x_test[test],
        images.y_test[test],
        images.classes[:7],
    )
    return known, images.x_test[~test]


def make_model(images: data.Images, seed: int) -> pb.BayesianModel:
    torch.manual_seed(seed)
    num_pixels = images.x_train[0].numel()
    first = [nets.Standardize.of(images.x_train, floor=0.1), nn.Flatten()]
    net = nets.mlp([num_pixels, 400, 400, len(images.classes)], first=first)
    return pb.BayesianModel(
        net,
        prior=pb.NormalPrior(0.1),
        likelihood=pb.CategoricalLikelihood(),
        num_data=len(images.x_train),
    )


def main() -> None:
    title, _, text = __doc__.split("\n", 2)  # without the line below the title
    parser = argparse.ArgumentParser(
        description=f"{title}\n{text}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--dataset",
        choices=["fashion-mnist", "digits"],
        default="fashion-mnist",
        help="name of the data set (default: %(default)s)",
    )
    parser.add_argument(
        "--data",
        type=Path,
        help="folder that contains FashionMNIST/raw and MNIST/raw "
        "(default: $PYRO_BNN_DATA, or data)",
    )
    parser.add_argument(
        "--download",
        action="store_true",
        help="fetch missing data into that folder",
    )
    parser.add_argument(
        "--epochs",
        type=int,
        default=8,
        help="epochs of the fit (default: %(default)s)",
    )
    parser.add_argument(
        "--kl-weight",
        type=float,
        default=0.3,
        help="1 gives the ELBO, less a cold posterior (default: %(default)s)",
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=Path(),
        help="folder for the pictures (default: %(default)s)",
    )
    parser.add_argument(
        "--seed",
        type=int,
        default=0,
        help="seed of all random numbers (default: %(default)s)",
    )
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)

    images, unknown = load(options.dataset, options.data, options.download)
    model = make_model(images, options.seed)
    posterior = pb.fit_svi(
        model,
        pb.MeanFieldGuide(model, init=pb.NetworkInit(prior_fraction=0.1)),
        (images.x_train, images.y_train),
        optimizer=pb.optim.scheduled(
            functools.partial(torch.optim.Adam, lr=1e-3),
            functools.partial(
                torch.optim.lr_scheduler.CosineAnnealingLR, T_max=options.epochs
            ),
        ),
        num_epochs=options.epochs,
        batch_size=128,
        kl_weight=options.kl_weight,
        progress=True,
        seed=options.seed,
    )
    print(posterior.status)

    x, y = images.x_test, images.y_test
    singles = [
        metrics.accuracy(pb.predict_point(model, draw, x).probs, y)
        for draw in posterior.draws(10)
    ]
    mean = pb.predict_point(model, posterior, x, y=y)
    ensemble = pb.predict(
        model, posterior, x, y=y, num_samples=100, seed=options.seed
    )
    assert isinstance(mean, pb.uncertainty.ClassificationPrediction)
    assert isinstance(ensemble, pb.uncertainty.ClassificationPrediction)
    print(
        f"accuracy of single draws   {min(singles):.2%} to {max(singles):.2%}"
    )
    for name, prediction in (
        ("mean weights", mean),
        ("ensemble of 100", ensemble),
    ):
        accuracy = metrics.accuracy(prediction.probs, y)
        error = metrics.expected_calibration_error(prediction.probs, y)
        print(
            f"accuracy of {name:16s}{accuracy:.2%}, NLL {prediction.nll:.4f} "
            f"nats, ECE {error:.4f}"
        )

    foreign = pb.predict(
        model, posterior, unknown, num_samples=100, seed=options.seed
    )
    assert isinstance(foreign, pb.uncertainty.ClassificationPrediction)
    for name, known_score, unknown_score in (
        ("entropy", ensemble.total, foreign.total),
        ("mutual information", ensemble.epistemic, foreign.epistemic),
    ):
        print(
            f"AUROC of the unknown by {name:18s} "
            f"{metrics.ood_scores(known_score, unknown_score).auroc:.4f}"
        )

    plotting.save(
        plotting.loss_curves(posterior.history)[0], options.out / "losses.png"
    )
    for name, pictures, prediction in (
        ("known", x, ensemble),
        ("unknown", unknown, foreign),
    ):
        votes = plotting.vote_histograms(
            pictures[:5], prediction.votes[:5], images.classes
        )
        plotting.save(votes[0, 0], options.out / f"votes_{name}.png")
    plotting.save(
        plotting.detection_curves(ensemble, foreign)[0],
        options.out / "scores.png",
    )


if __name__ == "__main__":
    main()
