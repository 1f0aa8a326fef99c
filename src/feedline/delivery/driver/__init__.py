"""The driver: does what the core decides, with an engine, and waits for what happens."""
