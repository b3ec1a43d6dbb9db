"""All ratios in one table: `python -m benchmarks`. The module `_rows` says what each row means."""

import argparse
import json
from pathlib import Path

import pyro
import torch

from ._measure import show
from ._rows import Options, all_rows


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="run for about a minute; the figures are rough")
    parser.add_argument("--full", action="store_true", help="measure the memory of prediction with 1000 draws")
    parser.add_argument("--rounds", type=int, default=15, help="number of rounds of each row; default 15")
    parser.add_argument("--threads", type=int, default=2, help="number of threads of torch")
    parser.add_argument("--device", choices=["cpu", "cuda"], help="measure on this device only; default all that exist")
    parser.add_argument(
        "--only", action="append", metavar="TEXT", help="rows whose name contains this; may be repeated"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the rows to this file")
    arguments = parser.parse_args()
    options = Options(arguments.threads, arguments.quick, arguments.full, arguments.rounds)
    rows = [r for r in all_rows(options) if any(text in r.name for text in arguments.only or [""])]
    if not rows:
        names = "\n".join(row.name for row in all_rows(options))
        parser.error(f"--only {arguments.only!r} leaves no row; the names are\n{names}")
    torch.set_num_threads(options.threads)
    devices = [device for device in ("cpu", "cuda") if device == "cpu" or torch.cuda.is_available()]
    devices = [device for device in devices if arguments.device in (None, device)]
    if not devices:
        parser.error("--device cuda: this machine has no GPU that torch can use.")
    for row in rows:
        for device in devices:
            if device in row.on:
                row.run(device)
                print(f"# {device}: {row.name}: {row.cells[device]}", flush=True)
    gpu = torch.cuda.get_device_name() if "cuda" in devices else "none"
    print(f"\ntorch {torch.__version__}, Pyro {pyro.__version__}, {options.threads} threads; GPU: {gpu}\n")
    print(show(rows))
    if arguments.json:
        arguments.json.write_text(json.dumps([row.to_dict() for row in rows], indent=1))


if __name__ == "__main__":
    main()
