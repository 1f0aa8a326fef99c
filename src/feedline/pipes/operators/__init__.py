"""The operators of pipes, one to a file."""
