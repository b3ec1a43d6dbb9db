"""The devices on which a program must wait when it reads a value of a tensor."""

import torch


def reads_wait(device: torch.device) -> bool:
    """Return whether reading a value of a tensor waits for a queue of operations, as on a GPU."""
    return device.type != "cpu"
