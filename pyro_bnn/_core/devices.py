"""Says on which devices a program must wait for earlier operations before it can read a value of a tensor."""

import torch


def reads_wait(device: torch.device) -> bool:
    """Return whether reading a value of a tensor waits for a queue of operations, as on a GPU."""
    return device.type != "cpu"
