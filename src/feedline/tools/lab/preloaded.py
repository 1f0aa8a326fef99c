"""Modules that Python's fork server imports once, so that the process of each run need not."""

import torch

import feedline.tools.lab.views
from feedline import DataLoader

__all__ = ["DataLoader", "feedline", "torch"]
