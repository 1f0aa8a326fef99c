"""Array libraries: how their arrays are collated, sent, gathered and seeded."""
