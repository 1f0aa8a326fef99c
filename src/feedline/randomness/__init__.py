"""The source of everything random: keys, orders, and the random numbers of the current sample."""
