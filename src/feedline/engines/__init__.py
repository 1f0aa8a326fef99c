"""What runs tasks: inline, threads, processes."""
