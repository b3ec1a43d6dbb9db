"""Devices on which reading a value must wait for earlier operations."""

import torch


def reads_wait(device: torch.device) -> bool:
    """Return whether the device queues operations, as a GPU does."""
    return device.type != "cpu"
