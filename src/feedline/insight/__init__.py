"""What a loader measures while it runs, and what the measurements mean."""
