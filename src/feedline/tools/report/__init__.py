"""Renders recordings as HTML pages."""

from feedline.tools.report.page import page_of

__all__ = ["page_of"]
