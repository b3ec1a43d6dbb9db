"""A transformer with calibrated probabilities
===========================================

A transformer tells from which library a docstring comes, once as a plain network and once as a posterior over all its
weights. The script prints the accuracy, NLL, calibration error, detection of unknown texts, and CPU time of both. Each
trains for the number of epochs that is best for it on validation texts (:doc:`/results/transformer`).

The texts are docstrings in the source files of Python's standard library, torch, numpy, scikit-learn, matplotlib and
Pyro, without the names of these libraries. Whole files are held out for the test. Docstrings of Pillow, rich, tqdm and
typer are the unknown texts. The network is a small `nn.TransformerEncoder`. Adam trains it as a plain network, and
natural gradients fit a posterior over its weights. The results depend on the installed versions.
"""

import argparse
import importlib.util
import re
import time
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import chain, islice
from pathlib import Path

import torch
from matplotlib.axes import Axes
from torch import Tensor, nn

import pyro_bnn as pb
from pyro_bnn import metrics, plotting

LIBRARIES = ("python", "torch", "numpy", "sklearn", "matplotlib", "pyro")
UNKNOWN = ("PIL", "rich", "tqdm", "typer")
NAMES = {*LIBRARIES, *UNKNOWN, "pytorch", "np", "plt", "mpl", "scikit", "learn"}
NUM_WORDS, LENGTH = 1500, 32


# %%
# Texts
# -----


def files_of(library: str) -> list[Path]:
    """The source files of a library in an arbitrary but fixed order."""
    module = "argparse" if library == "python" else library
    folder = Path(importlib.util.find_spec(module).origin).parent
    names = [str(path.relative_to(folder)) for path in folder.rglob("*.py")]
    others = re.compile("test|site-packages|idlelib|_vendor")
    kept = [name for name in names if not others.search(name)]
    kept.sort(key=lambda name: zlib.crc32(name.encode()))
    return [folder / name for name in kept]


def texts_of(path: Path) -> Iterator[list[str]]:
    """The first words of each triple-quoted text of at least twelve words in a
    file.
    """
    source = path.read_text(errors="ignore")
    for text in re.findall('"""(.*?)"""', source, re.DOTALL):
        words = re.findall("[a-z]{2,}", text.lower())
        words = [word for word in words if word not in NAMES]
        if len(words) >= 12:
            yield words[:LENGTH]


def collect(library: str, num_texts: int, places: range) -> list[list[str]]:
    """Return texts of a library, at most 20 from a file.

    The files are numbered from 0. Only those whose number modulo 5 is in
    `places` are read.
    """
    texts = (
        words
        for index, path in enumerate(files_of(library))
        if index % 5 in places
        for words in islice(texts_of(path), 20)
    )
    return list(islice(texts, num_texts))


def load(
    num_texts: int, is_validation: bool = False
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return words and labels for training, words and labels for the test, and
    words of the unknown texts. Words are numbers: 0 is padding, and 1 stands
    for every rare word.
    """
    train_files, test_files = (
        (range(1, 4), range(4, 5)) if is_validation else (range(1, 5), range(1))
    )
    train = [collect(name, num_texts, train_files) for name in LIBRARIES]
    test = [collect(name, num_texts // 2, test_files) for name in LIBRARIES]
    unknown = [collect(name, num_texts // 2, test_files) for name in UNKNOWN]
    counts = Counter(chain(*chain(*train)))
    frequent = [word for word, _ in counts.most_common(NUM_WORDS - 2)]
    number = {word: index for index, word in enumerate(frequent, start=2)}

    def encode(groups: list[list[list[str]]]) -> tuple[Tensor, Tensor]:
        rows = [
            [number.get(word, 1) for word in text] for text in chain(*groups)
        ]
        padded = [row + [0] * (LENGTH - len(row)) for row in rows]
        labels = [label for label, texts in enumerate(groups) for _ in texts]
        return torch.tensor(padded), torch.tensor(labels)

    return *encode(train), *encode(test), encode(unknown)[0]


# %%
# Network
# -------


class Reader(nn.Module):
    """Embeddings of words and positions, two layers of attention, and the mean
    over the words.
    """

    def __init__(self, width: int = 48) -> None:
        super().__init__()
        self.word = nn.Embedding(NUM_WORDS, width)
        self.place = nn.Embedding(LENGTH, width)
        for embedding in (self.word, self.place):
            nn.init.normal_(embedding.weight, std=0.3)
        layer = nn.TransformerEncoderLayer(
            width, 4, 2 * width, dropout=0.0, batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(
            layer, 2, enable_nested_tensor=False
        )
        self.head = nn.Linear(width, len(LIBRARIES))

    def forward(self, words: Tensor) -> Tensor:
        """Map the words of N texts, shape (N, 32), to logits, shape (N, 6)."""
        is_padding = words == 0
        hidden = self.word(words) + self.place.weight
        hidden = self.encoder(hidden, src_key_padding_mask=is_padding)
        present = (~is_padding).unsqueeze(-1).to(hidden)
        return self.head((hidden * present).sum(1) / present.sum(1))


# %%
# Fit
# ---


def fit(
    x: Tensor, y: Tensor, is_bayesian: bool, num_epochs: int, seed: int
) -> tuple[nn.Module, pb.GuidePosterior]:
    """Fit a network to texts. Adam fits a plain network; natural gradients
    fit a Gaussian for each weight.
    """
    torch.manual_seed(seed)
    prior, likelihood = pb.NormalPrior(0.3), pb.CategoricalLikelihood()
    model = pb.BayesianModel(
        Reader(), prior=prior, likelihood=likelihood, num_data=len(x)
    )
    # Learning rates and KL weight: heuristic, chosen on training files set
    # aside (`--validation`).
    if is_bayesian:
        optimizer = pb.optim.natural_gradient(0.1, hessian_decay=0.99, clip=1.0)
        guide = pb.MeanFieldGuide(
            model,
            init=pb.NetworkInit(scale=0.03),
            scale_map=pb.scale_maps.Precision(),
        )
    else:
        optimizer = partial(torch.optim.Adam, lr=2e-3)
        guide = pb.DeltaGuide(model)
    cosine = partial(
        torch.optim.lr_scheduler.CosineAnnealingLR, T_max=num_epochs
    )
    return model, pb.fit_svi(
        model,
        (x, y),
        guide,
        optimizer=pb.optim.scheduled(optimizer, cosine),
        num_epochs=num_epochs,
        batch_size=64,
        kl_weight=0.3 if is_bayesian else 1.0,
        seed=seed,
    )


# %%
# Run
# ---


def draw(
    name: str, probs: Tensor, y: Tensor, color: str, axes: Sequence[Axes]
) -> None:
    """Plot accuracy, with its 90 % interval, against confidence, and beside it
    the number of texts with each confidence.
    """
    bins = metrics.calibration_bins(probs, y)
    axes[1].stairs(bins.counts, bins.edges, color=color, label=name)
    bins = bins.joined(20)
    low, high = bins.accuracy_interval(0.9)
    sides = torch.stack([bins.accuracy - low, high - bins.accuracy])
    axes[0].errorbar(
        bins.confidence,
        bins.accuracy,
        yerr=sides,
        fmt="o",
        color=color,
        label=name,
        clip_on=False,
    )


@plotting.style()
def main(texts: int, epochs: list[int], seed: int, validation: bool) -> None:
    x, y, x_test, y_test, unknown = load(texts, validation)
    print(
        f"{len(x)} texts for training, {len(x_test)} for the test, "
        f"{len(unknown)} of other libraries"
    )
    print("              epochs  accuracy    NLL    ECE  AUROC  CPU s")
    axes = plotting.new_axes(1, 2, size=("page", 3.2))[0]
    axes[0].plot([0, 1], [0, 1], "--", color="0.4", linewidth=1)
    for name, num_epochs, color in zip(
        ("plain network", "posterior"), epochs, ("0.5", "C0"), strict=True
    ):
        is_bayesian = name == "posterior"
        start = time.process_time()
        model, posterior = fit(x, y, is_bayesian, num_epochs, seed)
        spent = time.process_time() - start
        draws = 32 if is_bayesian else 2  # of a plain network, all are the same
        known, foreign = (
            pb.predict(model, posterior, new, num_samples=draws, seed=0)
            for new in (x_test, unknown)
        )
        accuracy = metrics.accuracy(known.probs, y_test)
        nll = metrics.negative_log_likelihood(known.probs, y_test)
        ece = metrics.expected_calibration_error(known.probs, y_test)
        auroc = metrics.ood_scores(known.total, foreign.total).auroc
        print(
            f"{name:13} {num_epochs:6} {accuracy:9.1%} {nll:6.3f} {ece:6.3f} "
            f"{auroc:6.3f} {spent:6.1f}"
        )
        draw(name, known.probs, y_test, color, axes)
    for ax in axes:
        ax.set(xlabel="confidence", xlim=(0, 1), ylim=(0, None))
        ax.legend(loc="upper left")
    axes[0].set(ylabel="accuracy", ylim=(0, 1))
    axes[1].set(ylabel="texts")
    plotting.save(axes, "transformer.png")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    add = parser.add_argument
    add("--texts", type=int, default=800, help="most texts from a library")
    add(
        "--epochs",
        type=int,
        nargs=2,
        default=[5, 20],
        help="of the plain network and of the posterior",
    )
    add("--seed", type=int, default=0, help="of each fit")
    add("--validation", action="store_true", help="score texts set aside")
    main(**vars(parser.parse_args()))

# %%
# *Left: accuracy against confidence, with 90 % intervals. The plain network is
# too confident: most of its points lie below the diagonal. Those of the
# posterior lie near it. Right: number of texts with each confidence.*
