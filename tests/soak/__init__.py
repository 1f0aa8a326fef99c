"""The soak: training programs that run for hours with faults, are killed, and resume. `python -m tests.soak --help`."""
