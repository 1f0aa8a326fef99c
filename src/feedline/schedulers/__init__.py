"""Decisions without effects."""

from feedline.schedulers.in_order import InOrder, LeastLoaded
from feedline.schedulers.unordered import Unordered

__all__ = ["InOrder", "LeastLoaded", "Unordered"]
