"""Images: decoding, and the transforms that training uses."""
