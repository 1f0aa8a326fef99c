"""The loaders: where the parts meet."""
