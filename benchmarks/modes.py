"""Chains from modes on a table of numbers: `python -m benchmarks.modes airfoil.csv`.

One fifth of the rows are test rows, `train_test_split(test_size=0.2, random_state=0)`; inputs and target are
standardised by the training rows. The network has four hidden layers of 16 ReLU units, a mean and a log variance; the
prior is N(0, 1).
"""

import argparse
import statistics
import time
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import StandardScaler
from torch import nn

import pyro_bnn as pb
from pyro_bnn.inference.mcmc import Descent

HIDDEN = (16, 16, 16, 16)


def scores(table: Path, seed: int, num_chains: int, num_warmup: int, num_samples: int) -> dict[str, float]:
    """RMSE, NLL and CPU seconds of one run, in units of the standardised target.

    `nll` is the NLL of the Gaussian with the prediction's mean and variance, `mixture` the NLL of the prediction
    itself.
    """
    frame = pd.read_csv(table)
    parts = train_test_split(frame.iloc[:, :-1], frame.iloc[:, -1:], test_size=0.2, random_state=0)
    scaled = []
    for train, test in (parts[:2], parts[2:]):
        scaler = StandardScaler().fit(train.to_numpy())
        scaled += [torch.tensor(scaler.transform(part.to_numpy()), dtype=torch.float32) for part in (train, test)]
    x, x_test, y, y_test = scaled
    model = pb.BayesianModel(
        pb.nets.mlp([x.shape[1], *HIDDEN, 2], activation=nn.ReLU),
        prior=pb.NormalPrior(1.0),
        likelihood=pb.HeteroscedasticGaussianLikelihood(),
        num_data=len(x),
    )
    begin, begin_cpu = time.perf_counter(), time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", pb.ConvergenceWarning)
        posterior = pb.fit_mcmc(
            model,
            (x, y),
            sampler=pb.MCLMC(),
            init=Descent(),
            num_chains=num_chains,
            num_warmup=num_warmup // 10,
            num_samples=num_samples // 10,
            compile="auto",
            seed=seed,
        )
    seconds, cpu = time.perf_counter() - begin, time.process_time() - begin_cpu
    prediction = pb.predict(model, posterior, x_test, y=y_test, num_samples=posterior.num_stored or 1)
    mean, variance = prediction.mean.numpy(), prediction.total.numpy()
    error = np.square(y_test.numpy() - mean)
    return {
        "rmse": float(np.sqrt(error.mean())),
        "nll": float((0.5 * np.log(2 * np.pi * variance) + 0.5 * error / variance).mean()),
        "mixture": prediction.score()["nll"],
        "cpu seconds": cpu,
        "seconds": seconds,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("table", type=Path, help="CSV with a header, whose last column is the target")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--chains", type=int, default=10)
    parser.add_argument("--warmup", type=int, default=30_000, help="steps of each chain")
    parser.add_argument("--samples", type=int, default=8_000, help="steps of each chain after the warm-up")
    options = parser.parse_args()
    rows = []
    for seed in range(options.seeds):
        rows.append(scores(options.table, seed, options.chains, options.warmup, options.samples))
        print(f"| seed {seed} | " + " | ".join(f"{value:.4f}" for value in rows[-1].values()) + " |", flush=True)
    if len(rows) > 1:
        columns = {name: [row[name] for row in rows] for name in rows[0]}
        found = (f"{name} {statistics.mean(v):.4f} ± {statistics.stdev(v):.4f}" for name, v in columns.items())
        print("mean ± sd: " + ", ".join(found))


if __name__ == "__main__":
    main()
