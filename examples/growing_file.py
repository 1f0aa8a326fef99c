"""Train on the lines of a file that another program appends to, and continue after a crash where the last run stopped.

    python examples/growing_file.py

Shows: `GrowingFile` is a feed of your own over `StreamDataset`: copy it, and change what a line is. It follows one
growing file; it does not handle files that are rotated or truncated.

Look at: the second loader, which delivers only the line that was appended since the first one ended.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import feedline
from feedline.datasets import Feed, Message, StreamDataset


class Place(NamedTuple):
    """After a line: where in the file, how many lines that are, for which of how many readers."""

    offset: int
    line: int
    reader: int
    readers: int


class GrowingFile(Feed):
    """Lines of JSON. Readers take them by turns: each reads the whole file, and keeps its own lines.

    Args:
        path: the file; it has to be there.
        offsets: a file in which to keep how far the lines were consumed, so that the next run goes on there.
    """

    def __init__(self, path: str | os.PathLike[str], *, offsets: str | os.PathLike[str] | None = None) -> None:
        self.path = Path(path).absolute()
        self.offsets = None if offsets is None else Path(offsets).absolute()
        self._place = Place(0, 0, 0, 1)
        self._done: dict[int, Place] = {}

    def subscribe(self, number: int, count: int) -> None:
        kept = self._kept()
        if number in kept and kept[number].readers == count:
            self._place = kept[number]
        elif kept and len(kept) == next(iter(kept.values())).readers != count:
            # There were more or fewer readers: all begin where the last of them was, and some lines come again.
            self._place = min(kept.values())._replace(reader=number, readers=count)
        else:
            self._place = Place(0, 0, number, count)

    def receive(self, most: int, wait_s: float) -> list[Message]:
        deadline_s = time.monotonic() + wait_s
        while True:
            messages = self._lines(most)
            left_s = deadline_s - time.monotonic()
            if messages or left_s <= 0:
                return messages
            time.sleep(min(0.05, left_s))

    def _lines(self, most: int) -> list[Message]:
        messages: list[Message] = []
        with open(self.path, "rb") as file:
            file.seek(self._place.offset)
            while len(messages) < most:
                line = file.readline()
                if not line.endswith(b"\n"):  # nothing, or a line that is not whole yet
                    break
                offset, number, reader, readers = self._place
                self._place = Place(offset + len(line), number + 1, reader, readers)
                if number % readers == reader:
                    messages.append(Message(line, self._place))
        return messages

    def decode(self, message: Message) -> Any:
        """Make a sample of a line. An exception here is about one sample, which `on_error="skip"` leaves out."""
        try:
            return json.loads(message.payload)
        except ValueError as exc:
            raise ValueError(f"Line {message.receipt.line} of {self.path} is no JSON ({exc}).") from exc

    def acknowledge(self, receipts: list[Any]) -> None:
        if self.offsets is None:
            return
        self._done = self._done or self._kept()
        for place in receipts:
            if any(other.readers != place.readers for other in self._done.values()):
                self._done = {}
            self._done[place.reader] = place
        written = self.offsets.with_suffix(".new")
        written.write_text(json.dumps({"places": list(self._done.values())}))
        os.replace(written, self.offsets)  # atomic: no reader ever sees half of it

    def _kept(self) -> dict[int, Place]:
        if self.offsets is None or not self.offsets.exists():
            return {}
        places = [Place(*place) for place in json.loads(self.offsets.read_text())["places"]]
        return {place.reader: place for place in places}

    def seek(self, receipt: Any) -> None:
        self._place = Place(*receipt)

    def close(self) -> None:
        """Nothing: the file is open only while it is read."""

    def __repr__(self) -> str:
        return f"GrowingFile({str(self.path)!r})"


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "events.jsonl"
        log.write_text("".join(json.dumps({"x": number}) + "\n" for number in range(100)))
        dataset = StreamDataset(GrowingFile(log, offsets=log.with_suffix(".offsets")), idle_s=0.2)
        seen = sum(len(batch["x"]) for batch in feedline.Loader(dataset, 16, workers=2))
        print(f"{seen} lines")

        with log.open("a") as file:
            file.write('{"x": 100}\n')
        for batch in feedline.Loader(dataset, 16, workers=2):
            print("appended since:", batch["x"].tolist())
        dataset.close()


if __name__ == "__main__":
    main()
