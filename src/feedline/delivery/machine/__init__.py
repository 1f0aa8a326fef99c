"""The delivery machine: which worker makes which batch, and what happens to it. No I/O, no clock, no processes."""
