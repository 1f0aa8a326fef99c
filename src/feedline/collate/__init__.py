"""Combine samples into a batch."""

from feedline.collate.default import default
from feedline.collate.detection import detection
from feedline.collate.drop_none import drop_none
from feedline.collate.pad import pad

__all__ = ["default", "detection", "drop_none", "pad"]


def __dir__() -> list[str]:
    return __all__
