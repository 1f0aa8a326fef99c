"""Packing: documents of different lengths in rows of one length, with little or no padding."""

from feedline.text.packing.attention import SequenceLengths, attention_mask, block_mask, cu_seqlens
from feedline.text.packing.documents import chat_document, document_lengths, preference_document, prompt_document
from feedline.text.packing.filling import build
from feedline.text.packing.planning import plan
from feedline.text.packing.rows import Plan

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
