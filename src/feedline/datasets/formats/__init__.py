"""The formats, each in a file or a small folder."""
