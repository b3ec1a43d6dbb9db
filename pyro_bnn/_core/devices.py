"""Devices on which reading a value must wait for earlier operations."""

import torch


def reads_wait(device: torch.device) -> bool:
    """Return whether operations are queued, as on a GPU."""
    return device.type != "cpu"
