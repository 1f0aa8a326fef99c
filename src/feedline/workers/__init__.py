"""Engines that run tasks: threads, processes, Ray actors."""
