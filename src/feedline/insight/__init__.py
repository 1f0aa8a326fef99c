"""What a loader measures while it runs, and what can be said of it."""
