"""Forked workers after the trainer, or its parent process, has computed on several threads."""

from __future__ import annotations

import pytest

from tests.faults.programs import running, running_afresh

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


@pytest.mark.slow  # torch's own loader hangs there
def test_workers_may_compute_on_several_threads_too() -> None:
    with running_afresh(CONVOLUTION) as program:
        assert program.line() == "done"
        assert program.end() == 0


FORKED_TRAINER = """
import torch
torch.set_num_threads(2)
torch.rand(1 << 17).add(1)  # makes torch's threads, of which a child has none
child = os.fork()
if child == 0:
    os._exit(len(list(Loader(Numbers(), 4, workers=2))))
say(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_trainer_may_be_forked_from_a_process_that_computed_on_several_threads() -> None:
    with running(FORKED_TRAINER) as program:
        assert program.line() == "16"
        assert program.end() == 0
