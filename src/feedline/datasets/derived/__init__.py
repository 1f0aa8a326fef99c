"""Datasets made from other datasets, and `open_dataset`."""
