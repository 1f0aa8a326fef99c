"""What Python's fork server imports before it makes the processes of runs: imported once instead of for every run."""

import torch

import feedline.tools.lab.views
from feedline import DataLoader

__all__ = ["DataLoader", "feedline", "torch"]
