"""Array libraries: how arrays are collated, sent, gathered and seeded. Training libraries: how they keep our loader."""
