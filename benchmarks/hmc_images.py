"""HMC's own predictions of digits as the yardstick of twelve methods: `python -m benchmarks.hmc_images`.

Chains of HMC draw from the posterior of a small LeNet that is trained on 2,000 digits of MNIST. Every other method has
the same network, prior and likelihood, and its predictions are compared with those of the chains. Settings are chosen
on 2,000 other training images. Each fit adds one line to FOLDER/results.jsonl, or in the search to FOLDER/search.jsonl,
and is not repeated later. With a larger --samples the chains of an earlier run continue. The tables are written after
each line of results, and the picture at the end.
"""

import functools
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from . import _hmc_images, _hmc_tables
from ._hmc_images import METHODS, Lengths, SmallNetwork
from ._hmc_tables import YARDSTICK, Predictions
from ._methods import Fit, Network, Problem
from ._methods_scores import Pictures
from ._results import Row, parser_of
from .methods import Table

BY_NAME = {method.name: method for method in METHODS}


def comparison(network: Network, load: Callable[[bool], Pictures], out: Path) -> Table[Pictures]:
    """Fits of all methods, whose predictions are kept and compared with those of the chains."""

    def evaluate(fit: Fit, pictures: Pictures, key: Row) -> Row:
        found = Predictions.of(fit, pictures, key["seed"])
        if pictures.unknown is not None:
            found.save(out / f"{key['method']}-{key['seed']}.npz")
        return found.scores(pictures.y_test) | {"num_draws": fit.num_samples}

    def write(rows: Sequence[Row], searched: Sequence[Row], out: Path) -> str:
        text = _hmc_tables.report(rows, searched, out)
        (out / "tables.md").write_text(text)
        return text

    return Table(network, load, evaluate, write, out, functools.partial(print, flush=True))


def measure_chains(network: Network, pictures: Pictures, lengths: Lengths, num_dropped: int, out: Path) -> None:
    """Draw the chains of the yardstick, or continue them, and keep each chain's predictions.

    The first `num_dropped` draws of each chain after the warm-up are left out, too.
    """
    problem = Problem(network, pictures.x, pictures.y, seed=0)
    model, posterior, seconds = _hmc_images.sampled(problem, lengths, out)
    posterior = _hmc_images.later(posterior, num_dropped)
    chains = [_hmc_images.of_chain(posterior, chain) for chain in range(posterior.num_chains)]
    found = [Predictions.of(Fit(model, chain, chain.num_stored, seconds), pictures, seed=0) for chain in chains]
    _hmc_tables.note_chains(posterior, model, pictures, seconds, found, out)


def main(arguments: Sequence[str] | None = None) -> None:
    names, lengths = [YARDSTICK, *BY_NAME], Lengths()
    parser = parser_of("hmc_images", __doc__, data="MNIST and FashionMNIST")
    parser.add_argument("--methods", nargs="+", choices=names, default=names, metavar="METHOD", help=", ".join(names))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2], metavar="SEED")
    parser.add_argument("--chains", type=int, default=lengths.num_chains, help="number of chains of the yardstick")
    parser.add_argument("--warmup", type=int, default=lengths.num_warmup, help="warm-up draws of each chain")
    parser.add_argument("--samples", type=int, default=lengths.num_samples, help="further draws of each chain")
    parser.add_argument("--dropped", type=int, default=10, help="of these, the first draws that are left out")
    parser.add_argument("--steps", type=int, default=lengths.max_steps, help="steps of HMC's longest trajectory")
    parser.add_argument("--epochs", type=int, default=50, help="number of epochs of the other methods")
    parser.add_argument("--draws", type=int, default=100, help="number of draws for their predictions")
    parser.add_argument("--train", type=int, default=2000, help="number of training images")
    parser.add_argument("--test", type=int, default=2000, help="number of test images of each kind, from the first")
    given = parser.parse_args(arguments)
    torch.set_num_threads(1)
    prior = f"normal:{_hmc_images.PRIOR_SCALE}"
    network = SmallNetwork("small-lenet", epochs=given.epochs, prior=prior, draws=given.draws)

    def load(is_validation: bool) -> Pictures:
        return _hmc_images.load(given.data, is_validation=is_validation, num_train=given.train, num_test=given.test)

    table = comparison(network, load, given.out)
    if YARDSTICK in given.methods:
        lengths = Lengths(given.chains, given.warmup, given.samples, given.steps)
        measure_chains(network, load(False), lengths, given.dropped, given.out)
        table.write()
    table.fill([BY_NAME[name] for name in given.methods if name != YARDSTICK], given.seeds)
    print(f"\n{table.write()}")
    _hmc_tables.picture(table.rows("results.jsonl"), given.out)


if __name__ == "__main__":
    main()
