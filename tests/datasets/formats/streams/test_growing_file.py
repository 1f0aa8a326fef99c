"""The example of a custom feed: it runs, and does what its page says."""

from __future__ import annotations

from pathlib import Path

import pytest

from examples.growing_file import GrowingFile


def numbers(feed: GrowingFile, most: int = 100) -> list[int]:
    return [feed.decode(message) for message in feed.receive(most, wait_s=0)]


def reader(path: Path, number: int = 0, count: int = 1, offsets: Path | None = None) -> GrowingFile:
    feed = GrowingFile(path, offsets=offsets)
    feed.subscribe(number, count)
    return feed


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "log.jsonl"
    path.write_text("".join(f"{number}\n" for number in range(10)))
    return path


def test_a_line_is_delivered_when_it_is_complete(log: Path) -> None:
    feed = reader(log)
    assert numbers(feed) == list(range(10))
    with log.open("a") as file:
        for text, found in (("1", []), ("0", []), ("\n", [10]), ("11\n12\n", [11, 12])):
            file.write(text)
            file.flush()
            assert numbers(feed) == found
    feed.close()


@pytest.mark.parametrize("count", [1, 2, 3])
def test_readers_split_the_lines_and_each_continues_where_it_stopped(count: int, log: Path, tmp_path: Path) -> None:
    offsets = tmp_path / "offsets"
    found: list[int] = []
    for most in (2, 100):
        readers = [reader(log, number, count, offsets) for number in range(count)]
        for feed in readers:
            messages = feed.receive(most, wait_s=0)
            found += [feed.decode(message) for message in messages]
            readers[0].acknowledge([message.receipt for message in messages])
            feed.close()
    assert sorted(found) == list(range(10))


def test_another_number_of_readers_loses_nothing(log: Path, tmp_path: Path) -> None:
    offsets = tmp_path / "offsets"
    for number, most in ((0, 4), (1, 2)):
        feed = reader(log, number, 2, offsets)
        feed.acknowledge([message.receipt for message in feed.receive(most, wait_s=0)])
        feed.close()
    feed = reader(log, 0, 1, offsets)
    assert numbers(feed) == list(range(4, 10))
    feed.close()


def test_a_state_is_a_position_in_the_file(log: Path) -> None:
    feed = reader(log)
    last = feed.receive(4, wait_s=0)[-1]
    other = reader(log)
    other.seek(list(last.receipt))
    assert numbers(other) == [4, 5, 6, 7, 8, 9]
    feed.close()
    other.close()
