"""What a program must know about the device of its tensors."""

import torch


def reads_wait(device: torch.device) -> bool:
    """Whether a program that reads a value of a tensor waits for it, as on every device but the CPU.

    Operations are put into such a device's queue, and the program goes on. A read of a value empties the queue, so the
    device is idle until the program has put the next operations into it.
    """
    return device.type != "cpu"
