"""What a prediction costs, and how many draws it needs: `python -m benchmarks.prediction --data ROOT`.

The first table compares `predict` with as many runs of the plain network. The second one compares ways to draw the
weights of a mean-field posterior of LeNet-5, by their errors against 4096 draws. Everything runs on one thread.
"""

import argparse
import functools
import math
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.func import functional_call

import pyro_bnn as pb
from pyro_bnn import nets

from ._results import head_of, line_of

Weights = dict[str, Tensor]

NUM_DRAWS = 32

# --- what a prediction costs ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """A network with random weights, random images, and the batches in which they run."""

    name: str
    net: nn.Sequential
    x: Tensor
    sizes: tuple[int, ...]  # rows in each run of the network; the first is the default of `predict`


def cases(num_images: int) -> Iterator[Case]:
    sizes = (10_000, 250)
    yield Case("LeNet-5", nets.lenet5(), torch.rand(num_images, 28, 28), sizes)
    yield Case("ResNet-20", nets.resnet20(), torch.rand(max(num_images // 4, 1), 3, 32, 32), sizes)


def cost(case: Case, size: int, *, rounds: int) -> tuple[list[float], list[float]]:
    """CPU seconds of `predict` and of as many runs of the plain network, for each round."""
    net = case.net.eval()
    likelihood = pb.CategoricalLikelihood()
    model = pb.BayesianModel(net, prior=pb.NormalPrior(1.0), likelihood=likelihood, num_data=len(case.x))
    guide = pb.MeanFieldGuide(model)

    def ours() -> None:
        pb.predict(model, guide, case.x, num_samples=NUM_DRAWS, batch_size=size, seed=0)

    def plain() -> None:
        with torch.no_grad():
            for _ in range(NUM_DRAWS):
                for rows in case.x.split(size):
                    net(rows)

    seconds: tuple[list[float], list[float]] = [], []
    for turn in range(rounds):
        for index in (0, 1) if turn % 2 else (1, 0):
            begin = time.process_time()
            (ours, plain)[index]()
            seconds[index].append(time.process_time() - begin)
    return seconds


def costs(num_images: int, rounds: int) -> Iterator[str]:
    """Costs of predictions, a line for each network and number of rows in a run."""
    columns = ["rows in a run", "`predict`, CPU s", f"{NUM_DRAWS} plain passes, CPU s", "ratio", "smallest, largest"]
    yield from head_of(["network", "images", *columns], 2)
    for case in cases(num_images):
        for size in dict.fromkeys(min(size, len(case.x)) for size in case.sizes):
            ours, plain = cost(case, size, rounds=rounds)
            ratios = [a / b for a, b in zip(ours, plain, strict=True)]
            times = [f"{statistics.median(part):.3g}" for part in (ours, plain)]
            spread = f"{min(ratios):.3f}, {max(ratios):.3f}"
            cells = [f"{len(case.x):,}", f"{size:,}", *times, f"{statistics.median(ratios):.3f}", spread]
            yield line_of([case.name, *cells])


def passes(num_images: int, rounds: int) -> Iterator[str]:
    """CPU time of one pass of LeNet-5 over images, a line for each number of rows in a run."""
    net, x = nets.lenet5().eval(), torch.rand(num_images, 28, 28)
    yield from head_of(["rows in a run of LeNet-5", f"a pass over {num_images:,} images, CPU s"], 1)
    for size in (10_000, 2500, 1000, 250, 64):
        times = []
        for _ in range(rounds):
            begin = time.process_time()
            with torch.no_grad():
                for rows in x.split(size):
                    net(rows)
            times.append(time.process_time() - begin)
        yield line_of([f"{size:,}", f"{statistics.median(times):.3f}"])


# --- how many draws it needs ------------------------------------------------------------------------------------------

Noise = Callable[[int, Weights, torch.Generator], list[Weights]]
"""A function that draws standard Gaussian noise for all weights: S dictionaries with the shapes of the second argument.
"""


def independent(count: int, like: Weights, generator: torch.Generator) -> list[Weights]:
    return [{n: torch.randn(v.shape, generator=generator) for n, v in like.items()} for _ in range(count)]


def antithetic(count: int, like: Weights, generator: torch.Generator) -> list[Weights]:
    """Pairs of opposite draws."""
    half = independent(count // 2, like, generator)
    return [{name: sign * value for name, value in noise.items()} for noise in half for sign in (1, -1)]


def centred(count: int, like: Weights, generator: torch.Generator) -> list[Weights]:
    """Draws whose mean is 0 for every weight, scaled so that the variance of each is still 1."""
    found = independent(count, like, generator)
    means = {name: torch.stack([noise[name] for noise in found]).mean(0) for name in like}
    scale = math.sqrt(count / (count - 1))
    return [{name: scale * (value - means[name]) for name, value in noise.items()} for noise in found]


def sobol(count: int, like: Weights, generator: torch.Generator) -> list[Weights]:
    """Scrambled Sobol' points, with a random shift of their digits in each call."""
    points = sobol_points(sum(value.numel() for value in like.values()))[:count]
    shifts = torch.randint(2**DIGITS, points.shape[1:], generator=generator)
    found = []
    for row in torch.special.ndtri(((points ^ shifts).double() + 0.5) / 2**DIGITS).float():
        parts = row.split([value.numel() for value in like.values()])
        found.append({name: part.view_as(like[name]) for name, part in zip(like, parts, strict=True)})
    return found


DIGITS, MOST_POINTS, MOST_DIMENSIONS = 30, 64, 21_201
"""Binary digits of torch's Sobol' points, the number of points that are used, and the most dimensions that they have.
"""


@functools.cache
def sobol_points(num_dimensions: int) -> Tensor:
    """Scrambled points as whole numbers, shape (64, P). Blocks of at most 21,201 dimensions are scrambled apart."""
    sizes = [len(block) for block in torch.zeros(num_dimensions).split(MOST_DIMENSIONS)]
    engines = [torch.quasirandom.SobolEngine(size, scramble=True, seed=seed) for seed, size in enumerate(sizes)]
    blocks = [engine.draw(MOST_POINTS, dtype=torch.double) for engine in engines]
    return (torch.cat(blocks, 1) * 2**DIGITS).long().clamp(0, 2**DIGITS - 1)


WAYS: dict[str, Noise] = {
    "independent draws": independent,
    "antithetic pairs": antithetic,
    "centred draws": centred,
    "scrambled Sobol'": sobol,
}


@dataclass(frozen=True)
class Gaussian:
    """A mean-field Gaussian of a network's weights, and images."""

    net: nn.Module
    means: Weights
    scales: Weights
    x: Tensor

    def answer(self, noises: list[Weights]) -> tuple[Tensor, Tensor]:
        """Mean probabilities, shape (N, C), and mutual information, shape (N,), of some draws."""
        return answer_of(self.log_probs(noises))

    @torch.no_grad()
    def log_probs(self, noises: list[Weights]) -> Tensor:
        """Log-probabilities of classes, shape (S, N, C)."""
        return torch.stack([self.run(noise).log_softmax(-1) for noise in noises])

    def run(self, noise: Weights) -> Tensor:
        drawn = {name: mean + self.scales[name] * noise[name] for name, mean in self.means.items()}
        return functional_call(self.net, drawn, (self.x,))


def answer_of(log_probs: Tensor) -> tuple[Tensor, Tensor]:
    return log_probs.exp().mean(0), pb.uncertainty.mutual_information(log_probs).float()


def reference(gaussian: Gaussian, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """The same as `answer_of` for many independent draws, of which one at a time is in memory."""
    probs, entropy = torch.zeros(()), torch.zeros(())
    for _ in range(count):
        log_probs = gaussian.log_probs(independent(1, gaussian.means, generator))[0].double()
        probs = probs + log_probs.exp() / count
        entropy = entropy - (log_probs.exp() * log_probs).sum(-1) / count
    return probs.float(), (torch.special.entr(probs).sum(-1) - entropy).float()


def fitted(data: Path | None, *, num_train: int, num_images: int, num_epochs: int) -> Gaussian:
    """A mean-field posterior of LeNet-5 on garments, and test images."""
    images = pb.data.load_images("fashion-mnist", root=data)
    x, y = images.x_train[:num_train], images.y_train[:num_train]
    torch.manual_seed(0)
    net = nets.lenet5(first=[nets.Standardize(x.mean(), x.std())])
    model = pb.BayesianModel(net, prior=pb.NormalPrior(0.2), likelihood=pb.CategoricalLikelihood(), num_data=len(x))
    guide = pb.MeanFieldGuide(model, init=pb.NetworkInit(prior_fraction=0.1))
    optimizer = functools.partial(torch.optim.Adam, lr=1e-3, fused=True)
    posterior = pb.fit_svi(model, (x, y), guide, optimizer=optimizer, num_epochs=num_epochs, batch_size=128, seed=0)
    moments = {site.removeprefix("net."): pair for site, pair in posterior.marginals().items()}
    means, scales = ({site: pair[index] for site, pair in moments.items()} for index in (0, 1))
    return Gaussian(net.eval(), means, scales, images.x_test[:num_images])


def errors(gaussian: Gaussian, sizes: tuple[int, ...], num_reference: int, num_repeats: int) -> Iterator[str]:
    """Errors of probabilities and of mutual information, a line for each way and number of draws."""
    generator = torch.Generator().manual_seed(1)
    probs, information = reference(gaussian, num_reference, generator)
    yield (
        f"{num_reference} independent draws of the reference, {len(gaussian.x):,} test images, {num_repeats} repeats; "
        f"mean mutual information {float(information.mean()):.4f} nats\n"
    )
    what = ["probabilities", "mutual information, nats", "mutual information times S / (S - 1)"]
    yield from head_of(["way", "draws S", *(f"{name}: error (se)" for name in what), "bias of mutual information"], 2)
    for way, noise in WAYS.items():
        for count in sizes:
            squares: list[list[float]] = [[], [], []]
            biases = []
            for _ in range(num_repeats):
                p, i = gaussian.answer(noise(count, gaussian.means, generator))
                misses = (p - probs, i - information, count / (count - 1) * i - information)
                for found, miss in zip(squares, misses, strict=True):
                    found.append(float(miss.square().mean()))
                biases.append(float((i - information).mean()))
            cells = [root_of(found) for found in squares]
            yield line_of([way, str(count), *cells, f"{statistics.mean(biases):+.5f}"])


def root_of(squares: list[float]) -> str:
    """Root of the mean of squares, with its standard error."""
    root = math.sqrt(statistics.mean(squares))
    error = statistics.stdev(squares) / math.sqrt(len(squares)) / (2 * root) if len(squares) > 1 else math.nan
    return f"{root:.5f} ({error:.5f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, metavar="ROOT", help="folder with FashionMNIST/raw, for the errors")
    parser.add_argument("--part", choices=("costs", "errors"), help="one table only; by default both")
    parser.add_argument("--images", type=int, default=1000, help="number of test images of the errors")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of the costs")
    parser.add_argument("--repeats", type=int, default=12, help="repetitions of each prediction of the errors")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to try the program")
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.part != "errors":
        rounds = 1 if given.quick else given.rounds
        for line in costs(20 if given.quick else 2000, rounds):
            print(line, flush=True)
        print()
        for line in passes(20 if given.quick else 10_000, rounds):
            print(line, flush=True)
        print()
    if given.part != "costs":
        few = given.quick
        posterior = fitted(
            given.data,
            num_train=256 if few else 60_000,
            num_images=9 if few else given.images,
            num_epochs=1 if few else 2,
        )
        sizes = (4, 8) if few else (4, 8, 16, 32, 64)
        for line in errors(posterior, sizes, 8 if few else 4096, 2 if few else given.repeats):
            print(line, flush=True)


if __name__ == "__main__":
    main()
