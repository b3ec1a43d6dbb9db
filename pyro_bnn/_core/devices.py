"""Devices on which a program that reads a tensor must wait."""

import torch


def reads_wait(device: torch.device) -> bool:
    """Return whether a program must wait for the device when it reads a value of a tensor: on all devices but the CPU.

    A GPU, for example, has a queue of operations: the program adds an operation and continues at once. To read a value
    of a tensor, the program waits until the queue is empty. The device is then idle until the next operation arrives.
    """
    return device.type != "cpu"
