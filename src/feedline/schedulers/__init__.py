"""Schedulers, which make decisions without side effects."""

from feedline.schedulers.plain import InOrder, LeastLoaded, Unordered

__all__ = ["InOrder", "LeastLoaded", "Unordered"]


def __dir__() -> list[str]:
    return __all__
