"""The run of a loader: what it keeps from epoch to epoch, and its iterations."""
