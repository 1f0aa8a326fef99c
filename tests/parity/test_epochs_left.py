"""What the datasets of workers have seen after an epoch that was left early is what torch's have seen."""

import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, IterableDataset, get_worker_info

from feedline import DataLoader
from tests.parity.sides import Side, same_in_processes

SAMPLES = 40


class Counting(Dataset[tuple[int, int, int]]):
    """Samples say which worker made them, and how many samples it had made before."""

    made = 0

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[int, int, int]:
        info = get_worker_info()
        assert info is not None
        self.made += 1
        return index, info.id, self.made


class Shuffled(IterableDataset[int]):
    """A stream that counts its epochs, shuffles by them, and splits itself."""

    epoch = 0
    worker_id = -1

    def __iter__(self) -> Iterator[int]:
        self.epoch += 1
        info = get_worker_info()
        assert info is not None
        self.worker_id = info.id
        order = np.random.default_rng(self.epoch).permutation(SAMPLES)
        yield from order[info.id :: info.num_workers].tolist()


class OwnGenerator(Counting):
    """Samples drawn from a generator that the dataset keeps."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng(3)

    def __getitem__(self, index: int) -> Any:
        return *super().__getitem__(index), int(self.rng.integers(1 << 30))


def leave(loader: Any, taken: int) -> None:
    """Begin an epoch, and leave it after some batches."""
    iterator = iter(loader)
    for _ in range(taken):
        next(iterator)


@pytest.mark.parametrize(("kind", "taken"), [(OwnGenerator, (1, 1)), (Shuffled, (3, 0, 2))], ids=str)
@same_in_processes
def test_every_task_that_torch_would_have_sent_is_done(side: Side, kind: type, taken: tuple[int]) -> object:
    loader = side.loader(kind(), batch_size=2, persistent_workers=True)
    for count in taken:
        leave(loader, count)
    return [torch.utils.data.default_convert(list(loader)) for _ in range(2)]


class OwnIterator(IterableDataset[int]):
    """Its own iterator, which goes on behind its end with the next epoch."""

    place = 0

    def __iter__(self) -> Iterator[int]:
        return self

    def __next__(self) -> int:
        self.place += 1
        if self.place % 10 == 6:
            raise StopIteration
        return self.place


@pytest.mark.parametrize(("taken", "batch_size"), [((), 2), ((1,), None)], ids=str)
@same_in_processes
def test_no_task_reads_behind_the_end_of_a_stream(side: Side, taken: tuple[int], batch_size: int | None) -> object:
    loader = side.loader(OwnIterator(), batch_size=batch_size, persistent_workers=True, prefetch_factor=4)
    for count in taken:
        leave(loader, count)
    return [list(loader) for _ in range(3)]


@pytest.mark.parametrize("options", [{"seed": 1}, {"in_order": False, "engine": "thread"}], ids=str)
def test_every_epoch_reaches_every_worker(options: dict[str, Any]) -> None:
    loader = DataLoader(Shuffled(), batch_size=1, num_workers=3, persistent_workers=True, **options)
    for taken in (1, 0, 4):
        leave(loader, taken)
    for _ in range(2):
        assert sorted(int(batch) for batch in loader) == list(range(SAMPLES))
    loader.close()


class Dying(Shuffled):
    """One of its workers dies once, in the third epoch."""

    def __init__(self, flag: str) -> None:
        self.flag = flag

    def __iter__(self) -> Iterator[int]:
        for place, sample in enumerate(super().__iter__()):
            if self.epoch == 3 and place == 5 and self.worker_id == 1:
                try:
                    open(self.flag, "x").close()
                except FileExistsError:
                    pass
                else:
                    os._exit(3)
            yield sample


@pytest.mark.filterwarnings("ignore::feedline.errors.WorkerWarning")
def test_a_worker_that_replaces_another_begins_the_epochs_that_it_has_missed(tmp_path: Any) -> None:
    loader = DataLoader(Dying(str(tmp_path / "died")), batch_size=2, num_workers=2, persistent_workers=True)
    for _ in range(4):
        assert sorted(torch.cat(list(loader)).tolist()) == list(range(SAMPLES))
    assert (tmp_path / "died").exists()
    loader.close()
