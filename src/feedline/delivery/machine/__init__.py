"""The delivery machine: which batch is made by whom, and what becomes of it. No I/O, no clock, no process."""
