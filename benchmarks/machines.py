"""Ten networks on several machines, simulated: `python -m benchmarks.machines`.

Either each machine trains its own members, which need no communication, or all machines share every batch of one member
after the other (data parallel). Times of gradients and of the optimizer's steps are measured here, on one thread. The
simulation draws from them: in a data-parallel step, all machines wait for the slowest one, and then exchange gradients
in a ring.
"""

import argparse
import math
import time
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from pyro_bnn import nets

NUM_MEMBERS = 10
MACHINES = (1, 2, 5, 10)


def ring_seconds(num_bytes: float, machines: int, bandwidth: float, latency: float) -> float:
    """Time of a ring all-reduce: 2 (P - 1) rounds, each with a part of 1 / P of the bytes."""
    rounds = 2 * (machines - 1)
    return rounds * (num_bytes / machines / bandwidth + latency)


def side_by_side(step: Tensor, num_steps: int, machines: int) -> float:
    """Time until the last of P machines has trained its members, from measured times of steps with whole batches."""
    members = math.ceil(NUM_MEMBERS / machines)
    return float(_drawn(step, (machines, members * num_steps)).sum(1).max())


def data_parallel(gradient: Tensor, optimizer: Tensor, exchange: float, num_steps: int, machines: int) -> float:
    """Time of all members one after the other, from times of gradients of a share of a batch, and of the optimizer."""
    slowest = _drawn(gradient, (machines, NUM_MEMBERS * num_steps)).max(0).values
    steps = slowest + _drawn(optimizer, (NUM_MEMBERS * num_steps,)) + exchange
    return float(steps.sum())


def _drawn(times: Tensor, shape: Sequence[int]) -> Tensor:
    return times[torch.randint(len(times), tuple(shape))]


def measured(run: Callable[[], object], repeats: int) -> Tensor:
    """CPU times of a function in seconds, shape (repeats,), without the first runs."""
    times = []
    for index in range(-3, repeats):
        begin = time.process_time()
        run()
        if index >= 0:
            times.append(time.process_time() - begin)
    return torch.tensor(times, dtype=torch.float64)


class Network:
    """A network, the shape of its images, and the number of images and steps of its training."""

    def __init__(self, name: str, net: nn.Module, shape: tuple[int, ...], batch_size: int, num_steps: int) -> None:
        self.name, self.batch_size, self.num_steps = name, batch_size, num_steps
        self._net, self._shape = net, shape
        self._adam = torch.optim.Adam(net.parameters(), fused=True)

    @property
    def num_bytes(self) -> int:
        return 4 * sum(parameter.numel() for parameter in self._net.parameters())

    def gradient(self, num_rows: int) -> Callable[[], None]:
        x, y = torch.randn(num_rows, *self._shape), torch.randint(10, (num_rows,))

        def run() -> None:
            self._net.zero_grad()
            functional.cross_entropy(self._net(x), y).backward()

        return run

    def step(self) -> None:
        self._adam.step()


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gigabits", type=float, default=10.0, help="bandwidth between machines, Gbit/s")
    parser.add_argument("--latency", type=float, default=50.0, help="time of an empty message, microseconds")
    parser.add_argument("--repeats", type=int, default=30, help="measured gradients for each number of rows")
    parser.add_argument(
        "--steps",
        type=int,
        help="steps of each member; default: 20 epochs of 60,000 images (LeNet-5), 164 epochs of 50,000 (ResNet-20)",
    )
    given = parser.parse_args(arguments)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    networks = (
        Network("LeNet-5", nets.lenet5(), (28, 28), 128, given.steps or 20 * 469),
        Network("ResNet-20", nets.resnet20(), (3, 32, 32), 128, given.steps or 164 * 391),
    )
    print("| network | machines | members side by side, h | data parallel, h | faster by side by side |")
    print("|---|--:|--:|--:|--:|")
    for network in networks:
        optimizer = measured(network.step, given.repeats)
        whole = measured(network.gradient(network.batch_size), given.repeats)
        for machines in MACHINES:
            share = measured(network.gradient(math.ceil(network.batch_size / machines)), given.repeats)
            exchange = ring_seconds(network.num_bytes, machines, given.gigabits * 1e9 / 8, given.latency * 1e-6)
            apart = side_by_side(whole + optimizer, network.num_steps, machines) / 3600
            together = data_parallel(share, optimizer, exchange, network.num_steps, machines) / 3600
            print(
                f"| {network.name} | {machines} | {apart:.2f} | {together:.2f} | {together / apart:.2f} |", flush=True
            )


if __name__ == "__main__":
    main()
