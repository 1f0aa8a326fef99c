"""Which ranks of a large job share their batches, and how they make sure that they get the same ones."""
