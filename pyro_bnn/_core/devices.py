"""Whether reading a tensor makes the program wait for its device."""

import torch


def reads_wait(device: torch.device) -> bool:
    """Whether a program that reads a value of a tensor waits for the device; true of every device but the CPU.

    The program puts operations into the queue of such a device and continues at once. To read a value, it waits until
    the queue is empty. The device is then idle until new operations arrive.
    """
    return device.type != "cpu"
