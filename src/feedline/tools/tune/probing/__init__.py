"""What happens in the process of a probe: a dataset is tried there."""
