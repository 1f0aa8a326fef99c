"""Decisions without effects."""

from feedline.schedulers.plain import InOrder, Unordered

__all__ = ["InOrder", "Unordered"]
