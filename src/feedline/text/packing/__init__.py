"""Packing: documents of different lengths in rows of one length, with little or no padding."""

from feedline.text.packing.conversations import chat_document, preference_document, prompt_document
from feedline.text.packing.document import document_lengths
from feedline.text.packing.filling import build
from feedline.text.packing.masks import attention_mask, block_mask
from feedline.text.packing.planning import plan
from feedline.text.packing.rows import Plan
from feedline.text.packing.sequences import SequenceLengths, cu_seqlens

__all__ = [
    "Plan",
    "SequenceLengths",
    "attention_mask",
    "block_mask",
    "build",
    "chat_document",
    "cu_seqlens",
    "document_lengths",
    "plan",
    "preference_document",
    "prompt_document",
]


def __dir__() -> list[str]:
    return __all__
