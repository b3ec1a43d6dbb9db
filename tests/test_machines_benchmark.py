"""The simulated times of ten networks on several machines."""

import pytest
import torch

from benchmarks import machines


def test_a_ring_sends_each_byte_almost_twice() -> None:
    assert machines.ring_seconds(1e6, 1, bandwidth=1e9, latency=1e-4) == 0
    assert machines.ring_seconds(1e6, 10, bandwidth=1e9, latency=0.0) == pytest.approx(1.8e-3)
    assert machines.ring_seconds(0.0, 10, bandwidth=1e9, latency=1e-4) == pytest.approx(1.8e-3)


def test_constant_times_give_the_times_by_hand() -> None:
    step, gradient, optimizer = torch.tensor([0.5]), torch.tensor([0.1]), torch.tensor([0.02])
    assert machines.side_by_side(step, num_steps=3, machines=10) == pytest.approx(1.5)
    assert machines.side_by_side(step, num_steps=3, machines=4) == pytest.approx(4.5)  # one machine has three members
    assert machines.data_parallel(gradient, optimizer, 0.03, num_steps=3, machines=4) == pytest.approx(4.5)


def test_every_step_waits_for_the_slowest_machine() -> None:
    torch.manual_seed(0)
    gradient = torch.tensor([0.0, 1.0])
    found = machines.data_parallel(gradient, torch.zeros(1), 0.0, num_steps=1000, machines=10) / 10_000
    assert found == pytest.approx(1 - 2**-10, abs=0.002)


@pytest.mark.nightly
def test_the_command_prints_a_row_for_each_network_and_number_of_machines(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each gradient is computed once, not measured."""
    monkeypatch.setattr(machines, "measured", lambda run, repeats: (run(), torch.ones(repeats))[1])
    monkeypatch.setattr(machines, "MACHINES", (5, 10))
    machines.main(["--steps", "2", "--repeats", "1"])
    rows = capsys.readouterr().out.splitlines()
    assert len(rows) == 2 + 2 * 2
    assert rows[2].startswith("| LeNet-5 | 5 |")
