"""The hardware queues of CUDA, whose number is fixed when CUDA starts.

By default, all CUDA streams of a process share eight queues. nvJPEG has a stream for each of its decoding units. If one
of them shares a queue with the training loop, decoding waits several times per batch for the kernels of a whole
training step: on an H200, ResNet-18 then trains with 72 % of the images that it could.
"""

from __future__ import annotations

import os
import sys

VARIABLE = "CUDA_DEVICE_MAX_CONNECTIONS"
_MOST = "32"


def widen() -> None:
    """Ask CUDA for as many queues as it has, unless it has started already or the user has set a number."""
    cuda = getattr(sys.modules.get("torch"), "cuda", None)  # the module may still be importing itself
    if cuda is None or not cuda.is_initialized():
        os.environ.setdefault(VARIABLE, _MOST)


def are_default() -> bool:
    """True if all streams share CUDA's eight queues."""
    return VARIABLE not in os.environ
