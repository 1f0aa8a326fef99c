"""Which batches an epoch has, in which order. Pure: no I/O, no workers."""
