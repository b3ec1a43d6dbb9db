"""The devices on which a program must wait when it reads a value of a tensor."""

import torch


def reads_wait(device: torch.device) -> bool:
    """Return whether a program must wait when it reads a value of a tensor on this device.

    The result is True for all devices except the CPU. A GPU, for example, has a queue of operations: the program adds
    an operation and continues at once. To read a value of a tensor, the program waits until the queue is empty. The GPU
    is then idle until the next operation arrives.
    """
    return device.type != "cpu"
