"""Benchmarks of feedline against torch's loader: one module per question, run as `python -m benchmarks.<name>`."""
