"""Datasets that compose: `feedline.pipe` and its operators."""

from feedline.pipes.pipe import MapPipe, Pipe, ShardedPipe, StreamPipe, pipe

__all__ = ["MapPipe", "Pipe", "ShardedPipe", "StreamPipe", "pipe"]
