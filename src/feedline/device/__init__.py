"""Batches on a GPU: pinned memory, copies on a side stream, nvJPEG."""
