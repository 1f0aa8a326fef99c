"""A resumed epoch, with the real loaders; `test_demo.py` kills a worker."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import Dataset

from feedline.errors import InternalError
from feedline.tools.cli.demo import Open, resumed
from feedline.tools.measure.harness import FEEDLINE, TORCH, LoaderLike, Side

COUNT = 64


class Numbers(Dataset[tuple[torch.Tensor, int]]):
    """Samples that contain their index twice; `read` counts how often each was read."""

    def __init__(self) -> None:
        self.read = torch.zeros(COUNT, dtype=torch.int64).share_memory_()

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        self.read[index] += 1
        return torch.tensor([index]), index


@pytest.fixture
def numbers() -> Numbers:
    return Numbers()


@pytest.fixture
def opened(numbers: Numbers) -> Open:
    def open_(side: Side, *, shuffle: bool = True, **more: object) -> LoaderLike:
        return side.open(numbers, batch_size=4, shuffle=shuffle, num_workers=2, **more)

    return open_


def test_torch_reads_samples_again_after_resuming_and_feedline_does_not(numbers: Numbers, opened: Open) -> None:
    entries, read = resumed(opened, 12), []
    for entry in entries:
        numbers.read.zero_()
        assert (entry.measure()["seconds"] or 0) > 0
        read.append(int(numbers.read.sum()))
    theirs, ours = read
    assert theirs >= 13 * 4
    assert 4 <= ours <= 16  # the next batches, at most until the end of the epoch
    assert [entry.side.library for entry in entries] == [TORCH, FEEDLINE]


def test_a_wrong_batch_after_resuming_is_an_error(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    _, ours = resumed(opened, 12)
    monkeypatch.setattr("torch.equal", lambda *_: False)
    with pytest.raises(InternalError):
        ours.measure()
