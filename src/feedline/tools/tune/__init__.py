"""Tries a dataset, and says what keeps it from being fast or right."""
