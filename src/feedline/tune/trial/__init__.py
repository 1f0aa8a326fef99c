"""What happens in the process in which a dataset is tried."""
