"""Decisions without effects."""

from feedline.schedulers.plain import InOrder, LeastLoaded, Unordered

__all__ = ["InOrder", "LeastLoaded", "Unordered"]
