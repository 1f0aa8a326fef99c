"""Probes a dataset and reports what makes it slow or wrong."""
