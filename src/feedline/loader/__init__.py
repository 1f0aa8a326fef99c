"""The public loaders, which connect all other parts."""
