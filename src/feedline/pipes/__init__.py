"""Datasets that compose: `feedline.pipe` and its operators."""

from feedline.pipes.methods import Pipe
from feedline.pipes.pipe import MapPipe, ShardedPipe, StreamPipe, pipe

__all__ = ["MapPipe", "Pipe", "ShardedPipe", "StreamPipe", "pipe"]


def __dir__() -> list[str]:
    return __all__
