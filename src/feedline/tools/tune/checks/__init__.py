"""Turns measurements of a dataset into findings. Nothing is measured here."""
