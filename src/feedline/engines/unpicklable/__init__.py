"""Which part of a dataset, or of a function, cannot be sent to a worker process, and what to do about it."""

from feedline.engines.unpicklable.explanation import explain

__all__ = ["explain"]
