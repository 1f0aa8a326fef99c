"""The driver: performs the machine's decisions with an engine, and waits for events."""
