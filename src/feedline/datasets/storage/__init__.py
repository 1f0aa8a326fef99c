"""Read bytes from local files, http(s) and object storage."""
