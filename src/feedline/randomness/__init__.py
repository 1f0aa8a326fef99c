"""What everything random follows from: keys, orders, and the numbers of the sample that is being made."""
