"""Engines that run tasks: threads, processes."""
