"""The code that runs in the process of a probe and measures the dataset."""
