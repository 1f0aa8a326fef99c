"""Bytes from where they lie: local files, http(s), object storage."""
