"""What runs tasks: threads, processes."""
