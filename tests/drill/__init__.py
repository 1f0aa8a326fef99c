"""The drill: faults injected into real loaders, round after round. `python -m tests.drill --help`."""
