"""One writer per format."""
