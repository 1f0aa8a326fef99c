"""Decisions without effects."""

from feedline.policies.in_order import InOrder
from feedline.policies.unordered import Unordered

__all__ = ["InOrder", "Unordered"]
