"""Interrupted epochs, with the real loaders."""

from __future__ import annotations

import multiprocessing
import re
from collections.abc import Iterator

import pytest
import torch
from torch.utils.data import Dataset

from feedline.errors import InternalError
from feedline.tools.cli.demo import Open, kill_worker, resumed
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


def test_a_killed_worker_ends_the_epoch_only_with_torch(opened: Open) -> None:
    seen: list[int] = []

    def watched(side: Side, **more: object) -> object:
        loader = opened(side, **more)

        class Watched:
            dataset = range(COUNT)

            def __iter__(self) -> Iterator[object]:
                seen.clear()
                for batch in loader:
                    seen.extend(batch[1].tolist())
                    yield batch

            def close(self) -> None:
                if side.library == FEEDLINE:
                    loader.close()

        return Watched()

    # Apart: when a worker has died, torch opens files to see whether it can; its signal handler may leave some open.
    near, far = multiprocessing.Pipe(duplex=False)
    apart = multiprocessing.get_context("fork").Process(
        target=lambda: far.send((kill_worker(watched, Side(TORCH)), len(seen)))
    )
    apart.start()
    apart.join()
    ended, count = near.recv()
    near.close()
    far.close()
    apart.close()
    assert re.fullmatch(rf"\w+Error at {count}", ended)
    assert count < COUNT
    assert kill_worker(watched, Side(FEEDLINE)) == f"all {COUNT} images"
    assert seen == list(range(COUNT))  # nothing lost, nothing repeated
