"""One figure of `benchmarks.nuts`, for the common table."""

import os
import warnings

import torch


def milliseconds_per_ess(quick: bool, num_cores: int) -> dict[str, list[float]]:
    """Milliseconds per effective draw of predictions, after compilation, by seed: four chains, ours and NumPyro's.

    It must run in a process of its own. No flag keeps NumPyro from using several cores, so the process itself is bound
    to the cores that it may use.
    """
    if hasattr(os, "sched_setaffinity"):  # Linux
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:num_cores])
    os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1")
    torch.set_num_threads(1)
    from pyro_bnn import ConvergenceWarning

    from . import nuts

    warnings.simplefilter("ignore", ConvergenceWarning)
    lengths = nuts.Lengths(20, 20, 3) if quick else nuts.Lengths(200, 200)
    wanted = ["fit_nuts, 4 chains" if quick else "fit_nuts, compiled, 4 chains", "NumPyro, 4 chains, vectorized"]
    chosen = {s.name: s for s in nuts.samplers("4 chains") if s.name in wanted}
    result: dict[str, list[float]] = {name: [] for name in chosen}
    for seed in range(1 if quick else 3):
        for name, sampler in chosen.items():
            run = [sampler.run(lengths, seed)]
            result[name].append(float(nuts.row(sampler, run, run)["ms per ess"]))
    return result
