"""NUTS on a tanh network 1-20-1 of 61 weights, in float64 on one thread: `python -m benchmarks.nuts`.

- s: wall time of warm-up and sampling of all chains, without compilation and convergence checks.
- us/leapfrog: this time divided by the leapfrog steps of all chains. NumPyro does not report those of warm-up; they are
  taken to be as many as those of the stored draws.
- steps/draw: leapfrog steps, also of warm-up, divided by the kept draws.
- ESS: smallest bulk effective sample size of the network's value at 15 inputs; ms/ESS is time over ESS.
- times Pyro: Pyro's ms/ESS divided by this one.
- largest z: how far the predictive mean and mean square at these inputs are from four chains of `fit_nuts`, in Monte
  Carlo standard errors.

Restrict NumPyro to one core (`taskset -c 0`): its process uses up to 1.5 cores in spite of all flags.
"""

import argparse
import importlib.util
import json
import os
import statistics
import warnings
from pathlib import Path

import torch

from pyro_bnn.inference.mcmc import ConvergenceWarning, convergence

from ._samplers import Lengths, NumPyro, Ours, Pyro, Result, Sampler


def moments(result: Result) -> tuple[torch.Tensor, torch.Tensor]:
    """Means and Monte Carlo variances of f and of its square on the grid, both of shape (2 M,)."""
    values = torch.cat([result.functions, result.functions.square()], -1)
    return values.mean((0, 1)), values.var((0, 1)) / convergence(values).ess_bulk


def largest_z_score(a: list[Result], b: list[Result]) -> float:
    """Largest z-score of the differences between two samplers, over all repeats of each."""
    means, variances = zip(*(_pooled(results) for results in (a, b)), strict=True)
    return float(((means[0] - means[1]) / (variances[0] + variances[1]).sqrt()).abs().max())


def _pooled(results: list[Result]) -> tuple[torch.Tensor, torch.Tensor]:
    means, variances = zip(*map(moments, results), strict=True)
    return torch.stack(means).mean(0), torch.stack(variances).mean(0) / len(results)


def row(sampler: Sampler, results: list[Result], reference: list[Result]) -> dict[str, object]:
    sizes = [float(convergence(result.functions).ess_bulk.min()) for result in results]
    times = [result.seconds for result in results]
    return {
        "sampler": sampler.name,
        "seconds": statistics.median(times),
        "us per leapfrog": statistics.median(1e6 * r.seconds / r.num_steps for r in results),
        "steps per draw": statistics.median(r.num_steps / r.functions[..., 0].numel() for r in results),
        "ess": statistics.median(sizes),
        "ms per ess": statistics.median(1e3 * t / size for t, size in zip(times, sizes, strict=True)),
        "compile seconds": sampler.compile_seconds,
        "z": largest_z_score(results, reference),
        "repeats": len(results),
    }


def show(rows: list[dict[str, object]]) -> None:
    base = next((r["ms per ess"] for r in rows if r["sampler"] == "Pyro, 1 chain"), None)
    print("| sampler | s | us/leapfrog | steps/draw | ESS | ms/ESS | times Pyro | compile s | largest z | repeats |")
    print("|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|")
    for r in rows:
        speed = f"{base / r['ms per ess']:.1f}" if base else ""
        print(
            f"| {r['sampler']} | {r['seconds']:.1f} | {r['us per leapfrog']:.0f} | {r['steps per draw']:.0f} "
            f"| {r['ess']:.0f} | {r['ms per ess']:.1f} | {speed} | {r['compile seconds']:.0f} | {r['z']:.1f} "
            f"| {r['repeats']} |"
        )


def samplers(only: str) -> list[Sampler]:
    chosen: list[Sampler] = [Ours(1, compile=False), Ours(4, compile=False)]
    chosen += [Ours(num_chains, compile=True) for num_chains in (1, 4, 16)]
    if importlib.util.find_spec("numpyro"):
        chosen += [NumPyro(1), NumPyro(4), NumPyro(4, "vectorized")]
    else:
        print("NumPyro is left out, as it is not installed: pip install -e '.[bench]'")
    return [sampler for sampler in (*chosen, Pyro()) if only in sampler.name]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="run for a few minutes; the figures are rough")
    parser.add_argument("--repeats", type=int, default=3, help="interleaved repeats with own seeds; Pyro gets one")
    parser.add_argument("--draws", type=int, default=500, help="draws of each chain, after as many warm-up draws")
    parser.add_argument("--only", default="", metavar="TEXT", help="samplers whose name contains this")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the rows to this file")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1")
    warnings.simplefilter("ignore", ConvergenceWarning)  # runs are short on purpose; the table has their ESS
    draws, repeats = (50, 1) if arguments.quick else (arguments.draws, arguments.repeats)
    chosen = samplers(arguments.only)
    if not chosen:
        parser.error(f"--only {arguments.only!r} leaves no sampler; the names are {[s.name for s in samplers('')]}.")
    results: dict[str, list[Result]] = {sampler.name: [] for sampler in chosen}
    for seed in range(repeats):
        for sampler in chosen:
            if seed == 0 or not isinstance(sampler, Pyro):
                results[sampler.name].append(sampler.run(Lengths(draws, draws), seed))
                print(f"# {sampler.name}: {results[sampler.name][-1].seconds:.1f} s", flush=True)
    reference = results.get("fit_nuts, 4 chains", results[chosen[0].name])
    rows = [row(sampler, results[sampler.name], reference) for sampler in chosen]
    show(rows)
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
