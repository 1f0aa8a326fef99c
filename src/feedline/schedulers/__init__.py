"""Decisions without effects."""

from feedline.schedulers.in_order import InOrder
from feedline.schedulers.unordered import Unordered

__all__ = ["InOrder", "Unordered"]
