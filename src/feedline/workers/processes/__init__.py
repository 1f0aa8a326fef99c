"""Workers that are processes."""

from feedline.workers.processes.engine import ProcessEngine

__all__ = ["ProcessEngine"]
