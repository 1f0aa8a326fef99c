"""Recordings as pages to look at."""

from feedline.tools.report.page import page_of

__all__ = ["page_of"]
