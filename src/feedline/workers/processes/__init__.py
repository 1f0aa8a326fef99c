"""Workers that are processes.

A worker that is not forked imports this folder, but only its own side of it: `fresh.py` says what.
"""
