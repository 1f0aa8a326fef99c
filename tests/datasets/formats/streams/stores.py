"""Where the messages 0, 1, ... of a test are: a file that grows, and a Redis stream."""

import itertools
import json
from pathlib import Path
from typing import Any, Protocol

from examples.growing_file import GrowingFile
from feedline.datasets import RedisStream
from tests.datasets.formats.streams.server import Server

COUNT = 40


class Store(Protocol):
    def feed(self) -> Any:
        """Return a feed of the messages."""

    def acknowledged(self) -> set[int]:
        """Return the messages that the store will not deliver again."""


class Lines:
    def __init__(self, folder: Path) -> None:
        self.path = folder / "log.jsonl"
        self.offsets = folder / "offsets"
        self.path.write_text("".join(f'{{"number": "{number}"}}\n' for number in range(COUNT)))

    def feed(self) -> GrowingFile:
        return GrowingFile(self.path, offsets=self.offsets)

    def acknowledged(self) -> set[int]:
        if not self.offsets.exists():
            return set()
        places = json.loads(self.offsets.read_text())["places"]
        return {number for _, line, reader, readers in places for number in range(line) if number % readers == reader}


_numbers = itertools.count()


class Stream:
    def __init__(self, server: Server) -> None:
        self.server = server
        self.name = f"stream {next(_numbers)}"
        server.add(self.name, *range(COUNT))

    def feed(self, **options: Any) -> RedisStream:
        return RedisStream(self.server.url, self.name, **options)

    def acknowledged(self) -> set[int]:
        with self.server.client() as client:
            (group,) = client.xinfo_groups(self.name) or ({"name": b"", "last-delivered-id": b"0-0"},)
            delivered = client.xrange(self.name, max=group["last-delivered-id"])
            pending = client.xpending_range(self.name, group["name"], "-", "+", COUNT) if group["name"] else []
        open_ids = {entry["message_id"] for entry in pending}
        return {int(fields[b"number"]) for number, fields in delivered if number not in open_ids}


def number_of(sample: Any) -> int:
    return int(sample["number"])
