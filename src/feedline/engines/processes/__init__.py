"""Workers that are processes."""

from feedline.engines.processes.engine import ProcessEngine

__all__ = ["ProcessEngine"]
