from __future__ import annotations

import pytest
import torch

from feedline.cli.training import build_network


@pytest.fixture(scope="session", autouse=True)
def first_training_step() -> None:
    """Let torch's convolution library open, once per process, the file that it keeps open for profilers.

    Otherwise the first test that trains would seem to leave it behind.
    """
    build_network()(torch.zeros(2, 3, 48, 64)).sum().backward()
