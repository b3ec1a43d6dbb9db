"""Kill training processes at random moments, resume them, and compare with an uninterrupted run.

``python -m benchmarks.kill`` does so twenty times and prints a line for each. The comparison is exact: history,
parameters, buffers and statistics must agree in every bit.
"""

import argparse
import functools
import hashlib
import json
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from pyro.infer.autoguide import AutoNormal
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR
from torch.utils.data import DataLoader, TensorDataset

CASES = ("pruned", "loader", "direct", "pyro", "estimator", "cosine")


def fit(case: str, path: Path) -> str:
    """Fit, or resume if there is a checkpoint; returns a digest of everything that was learned and recorded."""
    import pyro_bnn as pb  # a killed process should spend its life in the fit, not in imports of the parent

    torch.manual_seed(0)
    torch.set_num_threads(1)
    x, num_epochs = torch.randn(300, 8), 12
    y = x[:, :2].sin() + 0.1 * torch.randn(300, 2)
    middle = nn.Identity() if case == "estimator" else nn.BatchNorm1d(32)  # it mixes rows, so no estimator supports it
    net = nn.Sequential(nn.Linear(8, 32), middle, nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 2))
    model = pb.BayesianModel(net, prior=pb.NormalPrior(), likelihood=pb.GaussianLikelihood(None), num_data=300)
    guide = pb.auto_guide(AutoNormal, model) if case == "pyro" else pb.MeanFieldGuide(model)
    if case == "pruned":
        guide = pb.pruning.prune(guide, fraction=0.5).guide
    adam = functools.partial(torch.optim.Adam, lr=1e-3)
    loader = DataLoader(TensorDataset(x, y), batch_size=20, shuffle=True, num_workers=2) if case == "loader" else None
    posterior = pb.fit_svi(
        model,
        loader or (x, y),
        guide,
        batch_size=None if loader else 20,
        optimizer=pb.optim.scheduled(adam, functools.partial(CosineAnnealingLR, T_max=12))
        if case == "cosine"
        else adam,
        num_epochs=num_epochs,
        estimator=pb.LocalReparameterization() if case == "estimator" else None,
        checkpoint=pb.Checkpoint(path, minutes=0),
        resume=path if path.exists() else None,
        seed=1,
    )
    digest = hashlib.sha256()
    for module in (model, guide):
        for name, value in module.state_dict().items():
            digest.update(name.encode() + value.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    history = posterior.history.to_dict()
    history["epochs"] = [{k: v for k, v in vars(r).items() if k != "seconds"} for r in posterior.history.epochs]
    digest.update(json.dumps(history).encode())
    return digest.hexdigest()


def start(case: str, path: Path) -> subprocess.Popen:
    """The process of a fit."""
    return subprocess.Popen([sys.executable, "-m", "benchmarks.kill", case, str(path)], stdout=subprocess.PIPE)


def killed_and_resumed(case: str, folder: Path, *, seed: int, num_kills: int) -> tuple[int, bool]:
    """Kill a fit at random moments between its first step and its end, and resume it each time.

    Returns:
        Number of kills that hit a running fit, and whether the final result is that of an uninterrupted run.
    """
    whole, _ = start(case, folder / "whole").communicate()
    path, moments, kills = folder / "killed", random.Random(seed), 0
    while kills < num_kills:
        process = start(case, path)
        before = path.stat().st_mtime_ns if path.exists() else 0
        while process.poll() is None and (path.stat().st_mtime_ns if path.exists() else 0) == before:
            time.sleep(0.001)
        time.sleep(moments.uniform(0, 0.3))
        process.kill()
        process.communicate()
        if process.returncode != -9:
            break
        kills += 1
    resumed, _ = start(case, path).communicate()
    return kills, bool(whole) and resumed == whole


def main() -> None:
    """Run the program."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("case", nargs="?", help="run this single fit, which can be killed")
    parser.add_argument("path", nargs="?", type=Path)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--first", type=int, default=0, help="number of the first run, which is its seed")
    arguments = parser.parse_args()
    if arguments.case:
        print(fit(arguments.case, arguments.path))
        return
    num_same = 0
    for run in range(arguments.first, arguments.first + arguments.runs):
        case = CASES[run % len(CASES)]
        with tempfile.TemporaryDirectory() as folder:
            kills, same = killed_and_resumed(case, Path(folder), seed=run, num_kills=1 + run % 3)
        num_same += same
        print(f"{case:10s} killed {kills} times, resumed: {'identical' if same else 'DIFFERENT'}", flush=True)
    print(f"{num_same} of {arguments.runs} runs are bit for bit identical")
    sys.exit(num_same != arguments.runs)


if __name__ == "__main__":
    main()
