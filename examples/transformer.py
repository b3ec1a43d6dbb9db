"""A transformer that reads documentation
=======================================

Which library is a docstring from? Real text that every installation of this library has, and two ways to learn it.

The texts are docstrings in the source files of Python's standard library, torch, numpy, scikit-learn, matplotlib and
Pyro, without the names of these libraries. Whole files are held out for the test. Docstrings of Pillow, rich, tqdm and
typer stand for the unknown. A small `nn.TransformerEncoder` is trained to a point, by Adam, and to a posterior over all
of its weights, by natural gradients. Prints a table, and leaves `transformer.png`, with the entropies of the
predictions. The texts, and so the numbers, are those of the installed versions.
"""

import ast
import functools
import importlib.util
import re
import sysconfig
import zlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor, nn

import pyro_bnn as pb

LIBRARIES = ("python", "torch", "numpy", "sklearn", "matplotlib", "pyro")
UNKNOWN = ("PIL", "rich", "tqdm", "typer")
NAMES = {*LIBRARIES, *UNKNOWN, "pytorch", "np", "plt", "mpl", "scikit", "learn"}
NUM_WORDS, LENGTH = 1500, 32


def files_of(library: str) -> list[Path]:
    """The source files of a library in an order that says nothing, but is always the same."""
    if library == "python":
        folder = Path(sysconfig.get_path("stdlib"))
    else:
        spec = importlib.util.find_spec(library)
        assert spec is not None
        assert spec.origin is not None
        folder = Path(spec.origin).parent
    names = {str(path.relative_to(folder)): path for path in folder.rglob("*.py")}
    kept = [name for name in names if not re.search("test|site-packages|idlelib|_vendor", name)]
    return [names[name] for name in sorted(kept, key=lambda name: zlib.crc32(name.encode()))]


def texts_of(path: Path) -> Iterator[list[str]]:
    """The words of each docstring in a file that has enough of them."""
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef, ast.Module)):
            words = re.findall("[a-z]{2,}", (ast.get_docstring(node) or "").lower())
            words = [word for word in words if word not in NAMES]
            if len(words) >= 12:
                yield words[:LENGTH]


def collect(library: str, num_texts: int, held_out: range) -> list[list[str]]:
    """Docstrings from files of which those at certain places, counted modulo 5, are chosen; at most 20 from a file."""
    found: list[list[str]] = []
    for index, path in enumerate(files_of(library)):
        if index % 5 in held_out:
            found += list(texts_of(path))[:20]
        if len(found) >= num_texts:
            break
    return found[:num_texts]


def load(num_texts: int, is_validation: bool) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Words and labels for training, for the test, and words of the unknown; padding is 0, a rare word 1."""
    train_files, test_files = (range(1, 4), range(4, 5)) if is_validation else (range(1, 5), range(1))
    train = [collect(library, num_texts, train_files) for library in LIBRARIES]
    test = [collect(library, num_texts // 2, test_files) for library in LIBRARIES]
    unknown = [collect(library, num_texts // 2, test_files) for library in UNKNOWN]
    counts = Counter(word for texts in train for words in texts for word in words)
    number = {word: index + 2 for index, (word, _) in enumerate(counts.most_common(NUM_WORDS - 2))}

    def encode(groups: list[list[list[str]]]) -> tuple[Tensor, Tensor]:
        rows = [[number.get(word, 1) for word in words] for texts in groups for words in texts]
        labels = [label for label, texts in enumerate(groups) for _ in texts]
        return torch.tensor([row + [0] * (LENGTH - len(row)) for row in rows]), torch.tensor(labels)

    return *encode(train), *encode(test), encode(unknown)[0]


class Reader(nn.Module):
    """Words and places, two layers of attention, and the mean over the words."""

    def __init__(self, width: int = 48) -> None:
        super().__init__()
        self.word = nn.Embedding(NUM_WORDS, width)
        self.place = nn.Embedding(LENGTH, width)
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, len(LIBRARIES))

    def forward(self, words: Tensor) -> Tensor:
        """Logits, shape (N, 6), of words, shape (N, 32)."""
        is_padding = words == 0
        hidden = self.word(words) + self.place.weight
        hidden = self.encoder(hidden, src_key_padding_mask=is_padding)
        present = (~is_padding).unsqueeze(-1).to(hidden)
        return self.head((hidden * present).sum(1) / present.sum(1))


def fit(
    x: Tensor, y: Tensor, is_bayesian: bool, num_epochs: int, prior_scale: float, kl_weight: float, lr: float, seed: int
) -> tuple[pb.BayesianModel, pb.GuidePosterior]:
    torch.manual_seed(seed)
    net = Reader()
    for embedding in (net.word, net.place):
        nn.init.normal_(embedding.weight, std=0.3)
    model = pb.BayesianModel(
        net, prior=pb.NormalPrior(prior_scale), likelihood=pb.CategoricalLikelihood(), num_data=len(x)
    )
    optimizer, guide = functools.partial(torch.optim.Adam, lr=lr), pb.auto_delta(model)
    if is_bayesian:
        optimizer = pb.natural_gradient(lr, hessian_decay=0.99, clip=1.0)
        guide = pb.MeanFieldGuide(model, init=pb.NetworkInit(scale=0.03), scale_map=pb.scale_maps.Precision())
    cosine = functools.partial(torch.optim.lr_scheduler.CosineAnnealingLR, T_max=num_epochs)
    return model, pb.fit_svi(
        model,
        guide,
        (x, y),
        optimizer=pb.scheduled(optimizer, cosine),
        num_epochs=num_epochs,
        batch_size=64,
        kl_weight=kl_weight,
        seed=seed,
    )
