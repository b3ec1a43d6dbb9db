"""Whether reading a tensor makes the program wait for its device."""

import torch


def reads_wait(device: torch.device) -> bool:
    """Whether a program that reads a value of a tensor waits for the device, which is so for all devices but the CPU.

    On a GPU, for example, a program puts operations into a queue and continues at once. To read a value of a tensor,
    the program waits until the queue is empty. The device is then idle until new operations arrive.
    """
    return device.type != "cpu"
