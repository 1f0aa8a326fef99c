"""Slots, and how a batch is written into one and read back."""
