"""What is in a store, whoever wrote it."""

from feedline.packing.contents.contents import Contents, Field
from feedline.packing.contents.look import look

__all__ = ["Contents", "Field", "look"]
