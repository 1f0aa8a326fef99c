"""Datasets of the recipes and the files that they read. Do not change them: released states depend on them."""

from __future__ import annotations

import io
import json
import sqlite3
import tarfile
import threading
from collections.abc import Iterator
from pathlib import Path

import feedline
from feedline.abc import ShardedSource
from feedline.datasets import Feed, Message

ROWS = 60


class Drawing:
    """A map-style dataset whose samples draw random numbers, which have to be the same after resuming."""

    def __init__(self, size: int = 37) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> list[int]:
        return [index, int(feedline.rng().integers(1 << 16))]


class Failing(Drawing):
    """Some samples fail."""

    def __getitem__(self, index: int) -> list[int]:
        if index % 7 == 3:
            raise OSError(f"sample {index} is broken")
        return super().__getitem__(index)


class LateFirst(Drawing):
    """In workers, the first sample waits for `go_on`, so that the second batch overtakes the first."""

    def __init__(self) -> None:
        super().__init__()
        self._event = threading.Event()

    def __getitem__(self, index: int) -> list[int]:
        if index == 0 and threading.current_thread() is not threading.main_thread():
            assert self._event.wait(60)
        return super().__getitem__(index)

    def go_on(self) -> None:
        self._event.set()


class Stateful:
    """A map-style dataset with its own state, as torchdata defines it."""

    def __init__(self) -> None:
        self.count = 0

    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> list[int]:
        self.count += 1
        return [index, self.count]

    def state_dict(self) -> dict[str, int]:
        return {"count": self.count}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.count = state["count"]


class Counting:
    """An iterable dataset without a state."""

    def __init__(self, size: int = 31) -> None:
        self.size = size

    def __iter__(self) -> Iterator[list[int]]:
        for number in range(self.size):
            yield [number, int(feedline.rng().integers(1 << 16))]


class Resuming(Counting):
    """An iterable dataset that resumes from its own state."""

    at = 0

    def __iter__(self) -> Iterator[list[int]]:
        while self.at < self.size:
            self.at += 1
            yield [self.at, 7 * self.at]
        self.at = 0

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


class _Numbers(Iterator["list[int]"]):
    def __init__(self, part: range) -> None:
        self.part, self.at = part, 0

    def __next__(self) -> list[int]:
        if self.at >= len(self.part):
            raise StopIteration
        self.at += 1
        return [self.part[self.at - 1]]

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


class Parted(ShardedSource):
    """An iterable dataset that splits itself over workers, and whose iterators have states."""

    _worker = (0, 1)

    def set_worker(self, number: int, count: int) -> None:
        self._worker = number, count

    def __iter__(self) -> Iterator[list[int]]:
        number, count = self._worker
        return _Numbers(range(number, 31, count))


class Numbers(Feed):
    """Messages with a position."""

    def subscribe(self, number: int, count: int) -> None:
        self.waiting = list(range(number, 24, count))

    def receive(self, most: int, wait_s: float) -> list[Message]:
        taken, self.waiting = self.waiting[:most], self.waiting[most:]
        return [Message(number, receipt=number) for number in taken]

    def acknowledge(self, receipts: list[object]) -> None:
        """Ignored."""

    def close(self) -> None:
        """Nothing to close."""

    def seek(self, receipt: int) -> None:
        self.waiting = [number for number in self.waiting if number > receipt]


class Reversed:
    """A custom sampler."""

    def __init__(self, size: int = 37) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.size)[::-1])


class StatefulReversed(Reversed):
    """A custom sampler with its own state."""

    at = 0

    def __iter__(self) -> Iterator[int]:
        while self.at < self.size:
            self.at += 1
            yield self.size - self.at
        self.at = 0

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


def odd(sample: int) -> bool:
    return sample % 2 == 1


def doubled(sample: int) -> list[int]:
    return [sample, int(feedline.rng().integers(1 << 16))]


def twice(sample: int) -> list[int]:
    return [sample, sample + 1000]


def document(number: int) -> dict[str, list[int]]:
    return {"tokens": [number] * (1 + number % 5)}


def encode(text: str) -> list[int]:
    return list(text.encode())


def write_files() -> None:
    """Write the files to the current folder. Names are relative, since they are part of some states."""
    for shard in range(5):
        _write_tar(f"shard-{shard}.tar", range(shard * 9, shard * 9 + 9))
    for part in range(2):
        lines = [{"id": number, "text": f"line {number} of part {part}"} for number in range(ROWS // 2)]
        Path(f"part-{part}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")
    database = sqlite3.connect("rows.db")
    with database:
        database.execute("create table samples (id integer primary key, label integer)")
        database.executemany("insert into samples values (?, ?)", [(number, number % 3) for number in range(ROWS)])
    database.close()


def _write_tar(name: str, numbers: range) -> None:
    with tarfile.open(name, "w", format=tarfile.USTAR_FORMAT) as archive:
        for number in numbers:
            content = str(number).encode()
            member = tarfile.TarInfo(f"{number:04}.txt")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))


def write_parquet() -> None:
    """Write a table to the current folder."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"id": list(range(ROWS))}), "rows.parquet", row_group_size=8)


def write_tokens() -> None:
    """Write a token file to the current folder."""
    from feedline.text import TokenWriter

    with TokenWriter("tokens.bin", dtype="uint16") as writer:
        writer.write([[number] * (3 + number % 4) for number in range(40)])


def write_records() -> None:
    """Write two TFRecord files to the current folder."""
    from tests.datasets.formats.tfrecord.records import example, file_of

    for part in range(2):
        records = [example({"id": str(number).encode()}) for number in range(part * 20, part * 20 + 20)]
        Path(f"part-{part}.tfrecord").write_bytes(file_of(records))
