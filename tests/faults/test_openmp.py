"""Forked workers after the trainer has computed on several threads. torch's own loader hangs there."""

from __future__ import annotations

import pytest

from tests.faults.programs import running_afresh

CONVOLUTION = """
import torch
torch.set_num_threads(2)
from feedline import DataLoader

weight = torch.rand(8, 3, 3, 3)

class Convolved:
    def __len__(self):
        return 8
    def __getitem__(self, index):
        image = torch.rand(1, 3, 128, 128)
        return torch.nn.functional.conv2d(image, weight)[0, :, 0, 0], torch.get_num_threads()

class Threads:
    def __call__(self, number):
        torch.set_num_threads(2)

with torch.no_grad():
    torch.nn.functional.conv2d(torch.rand(4, 3, 128, 128), weight)  # makes torch's threads
    torch.rand(512, 512) @ torch.rand(512, 512)
    batches = list(DataLoader(Convolved(), 2, num_workers=2, worker_init_fn=Threads()))
    assert [batch[1].tolist() for batch in batches] == [[2, 2]] * 4
    torch.nn.functional.conv2d(torch.rand(4, 3, 128, 128), weight)  # and they are back
    assert torch.get_num_threads() == 2
say("done")
"""


@pytest.mark.slow
def test_workers_may_compute_on_several_threads_too() -> None:
    with running_afresh(CONVOLUTION) as program:
        assert program.line() == "done"
        assert program.end() == 0
