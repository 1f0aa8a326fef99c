"""Files of lines as datasets: JSON lines and text."""

from feedline.datasets.formats.lines.dataset import JSONLines, TextLines

__all__ = ["JSONLines", "TextLines"]
