"""Measures loaders side by side, and describes the machine they run on."""
