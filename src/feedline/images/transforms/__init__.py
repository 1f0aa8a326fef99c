"""The transforms of training pipelines: each draws random numbers and touches no pixels."""
