"""Files that grow, are rotated, cut off and half written."""

import os
import pickle
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feedline.datasets.streams import GrowingFile, Message
from feedline.errors import SourceError


def taken(feed: GrowingFile, most: int = 1000) -> list[Any]:
    found: list[Any] = []
    while messages := feed.receive(most, 0):
        found += [feed.decode(message) for message in messages]
    return found


def following(path: Path, **options: Any) -> GrowingFile:
    feed = GrowingFile(path, **options)
    feed.subscribe(0, 1)
    return feed


def append(path: Path, text: str) -> None:
    with open(path, "a") as file:
        file.write(text)


def test_what_is_appended_comes(tmp_path: Path) -> None:
    path = tmp_path / "ü log.jsonl"
    feed = following(path)
    assert taken(feed) == []  # it does not even exist
    append(path, "1\n2\n")
    assert taken(feed) == [1, 2]
    assert taken(feed) == []
    append(path, '{"a": "ü"}\r\n')
    assert taken(feed) == [{"a": "ü"}]
    feed.close()


def test_a_line_comes_when_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "log"
    feed = following(path)
    for part in ('{"lo', "ng", '": [1,', " 2]}"):
        append(path, part)
        assert taken(feed) == []
    append(path, "\n")
    assert taken(feed) == [{"long": [1, 2]}]
    feed.close()


def test_lines_longer_than_a_piece(tmp_path: Path) -> None:
    path = tmp_path / "log"
    lines = ["x" * size for size in (0, 1, 65535, 65536, 65537, 300_000)]
    path.write_text("".join(f"{line}\n" for line in lines))
    feed = following(path, decode=None)
    assert taken(feed) == [line.encode() for line in lines]
    feed.close()


def test_rotation(tmp_path: Path) -> None:
    path = tmp_path / "log"
    feed = following(path)
    append(path, "1\n2\n")
    assert taken(feed, 1) == [1, 2]
    append(path, "3\n")
    path.rename(tmp_path / "log.1")
    assert taken(feed) == [3]  # there is no new file yet
    append(tmp_path / "log.1", "4\n")  # the writer still has the old one
    append(path, "5\n")
    assert taken(feed) == [4, 5]
    feed.close()


def test_several_rotations_at_once(tmp_path: Path) -> None:
    path = tmp_path / "log"
    feed = following(path)
    append(path, "1\n")
    assert taken(feed) == [1]
    for number, name in ((2, "log.3"), (3, "log.2"), (4, "log.1")):
        append(path, f"{number}\n")
        os.utime(path, ns=(number * 10**9, number * 10**9))
        path.rename(tmp_path / name)
    append(path, "5\n")
    assert taken(feed) == [2, 3, 4, 5]
    feed.close()


def test_a_last_line_without_an_end_comes_when_the_file_was_rotated(tmp_path: Path) -> None:
    path = tmp_path / "log"
    feed = following(path)
    append(path, "1\n2")
    assert taken(feed) == [1]
    path.rename(tmp_path / "log.1")
    append(path, "3\n")
    assert taken(feed) == [2, 3]
    feed.close()


def test_truncation(tmp_path: Path) -> None:
    path = tmp_path / "log"
    feed = following(path)
    append(path, "1\n2\n3\n")
    assert taken(feed) == [1, 2, 3]
    os.truncate(path, 0)
    assert taken(feed) == []
    append(path, "4\n")
    assert taken(feed) == [4]
    feed.close()


def test_from_the_end(tmp_path: Path) -> None:
    path = tmp_path / "log"
    append(path, "1\n2\n")
    feed = following(path, start="end")
    assert taken(feed) == []
    append(path, "3\n")
    assert taken(feed) == [3]
    feed.close()


def test_a_state_is_an_offset(tmp_path: Path) -> None:
    path = tmp_path / "log"
    append(path, "".join(f"{number}\n" for number in range(10)))
    feed = following(path)
    messages = feed.receive(4, 0)
    state = feed.state(messages[-1].receipt)
    for rotated in (False, True):
        if rotated:
            path.rename(tmp_path / "log.1")
            append(path, "10\n")
        other = following(path)
        other.restore(state)
        assert taken(other) == list(range(4, 11 if rotated else 10))
        other.close()
    feed.close()


def test_a_state_of_a_file_that_is_gone(tmp_path: Path) -> None:
    path = tmp_path / "log"
    append(path, "1\n")
    feed = following(path)
    state = feed.state(feed.receive(1, 0)[0].receipt)
    feed.close()
    keep = os.open(path, os.O_RDONLY)  # so that its number is not given to the next file
    path.unlink()
    append(path, "2\n3\n")
    feed.restore(state)
    assert taken(feed) == [2, 3]
    feed.close()
    os.close(keep)


def test_a_bad_line_is_an_error_that_says_where(tmp_path: Path) -> None:
    path = tmp_path / "log"
    append(path, '1\n{"broken\n3\n')
    feed = following(path)
    first, second, third = feed.receive(10, 0)
    assert (feed.decode(first), feed.decode(third)) == (1, 3)
    with pytest.raises(ValueError, match=r"Line 2 of .*log, which ends at byte 11.*broken"):
        feed.decode(second)
    feed.close()


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 10**6), max_size=60), st.integers(1, 5), st.integers(1, 7))
def test_readers_share_out_the_lines(numbers: list[int], count: int, most: int) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "log"
        append(path, "".join(f"{number}\n" for number in numbers))
        found = []
        for reader in range(count):
            feed = GrowingFile(path)
            feed.subscribe(reader, count)
            found.append(taken(feed, most))
            feed.close()
        assert found == [numbers[reader::count] for reader in range(count)]


def test_offsets_outlive_the_run(tmp_path: Path) -> None:
    path, offsets = tmp_path / "log", tmp_path / "state" / "offsets"
    append(path, "".join(f"{number}\n" for number in range(12)))
    feed = following(path, offsets=offsets)
    messages = feed.receive(5, 0)
    feed.acknowledge([message.receipt for message in messages])
    feed.close()
    again = following(path, offsets=offsets)
    assert taken(again) == list(range(5, 12))
    again.close()


def test_offsets_with_another_number_of_readers_lose_nothing(tmp_path: Path) -> None:
    path, offsets = tmp_path / "log", tmp_path / "offsets"
    append(path, "".join(f"{number}\n" for number in range(20)))
    parent = GrowingFile(path, offsets=offsets)
    for reader, most in ((0, 6), (1, 3)):
        feed = GrowingFile(path, offsets=offsets)
        feed.subscribe(reader, 2)
        parent.acknowledge([message.receipt for message in feed.receive(most, 0)])
        feed.close()
    found: set[int] = set()
    for reader in range(3):
        feed = GrowingFile(path, offsets=offsets)
        feed.subscribe(reader, 3)
        found |= set(taken(feed))
        feed.close()
    consumed = {0, 2, 4, 6, 8, 10, 1, 3, 5}
    assert found | consumed == set(range(20))
    assert 0 not in found  # and not everything comes again


def rotate(path: Path, age_s: int) -> None:
    """Rename a file, as if it had been changed so long ago."""
    for number in range(5, 0, -1):
        old = Path(f"{path}.{number}")
        if old.exists():
            old.rename(f"{path}.{number + 1}")
    now_s = time.time()
    os.utime(path, (now_s - age_s, now_s - age_s))
    path.rename(f"{path}.1")


def numbers_in(messages: list[Message]) -> list[int]:
    return [int(message.payload) for message in messages]


@pytest.mark.parametrize("count", [1, 3])
def test_offsets_in_several_files_with_another_number_of_readers_lose_nothing(count: int, tmp_path: Path) -> None:
    path, offsets = tmp_path / "log", tmp_path / "offsets"
    append(path, "".join(f"{number}\n" for number in range(20)))
    before = [GrowingFile(path, offsets=offsets) for _ in range(2)]
    for reader, feed in enumerate(before):
        feed.subscribe(reader, 2)
    slow, quick = before[0].receive(4, 0), before[1].receive(10, 0)
    rotate(path, 100)
    append(path, "".join(f"{number}\n" for number in range(20, 30)))
    quick += before[1].receive(1, 0)
    assert numbers_in(quick)[-1] == 21
    parent = GrowingFile(path, offsets=offsets)
    for messages in (slow, quick):
        parent.acknowledge([message.receipt for message in messages])
    found: list[int] = []
    for reader in range(count):
        feed = GrowingFile(path, offsets=offsets)
        feed.subscribe(reader, count)
        found += taken(feed)
        feed.close()
    assert sorted(found) == list(range(7, 30))  # from where the slow one was
    for feed in before:
        feed.close()


@pytest.mark.parametrize("consumed", [0, 3])
def test_a_reader_that_has_consumed_nothing_begins_with_the_oldest_file(consumed: int, tmp_path: Path) -> None:
    path, offsets = tmp_path / "log", tmp_path / "offsets"
    append(path, "0\n1\n2\n3\n4\n5\n")
    feed = GrowingFile(path, offsets=offsets)
    feed.subscribe(0, 2)
    messages = feed.receive(consumed, 0)
    if messages:
        feed.acknowledge([message.receipt for message in messages])
    feed.close()
    rotate(path, 200)
    append(path, "6\n7\n")
    rotate(path, 100)
    append(path, "8\n9\n")
    found: list[int] = []
    for reader in range(2):
        feed = GrowingFile(path, offsets=offsets)
        feed.subscribe(reader, 2)
        found += taken(feed)
        feed.close()
    assert sorted(found) == list(range(10))


@pytest.mark.parametrize("count", [1, 2])
def test_offsets_in_a_file_that_was_removed_go_on_with_those_that_are_left(count: int, tmp_path: Path) -> None:
    path, offsets = tmp_path / "log", tmp_path / "offsets"
    append(path, "0\n1\n2\n")
    feed = following(path, offsets=offsets)
    feed.acknowledge([message.receipt for message in feed.receive(2, 0)])
    feed.close()
    rotate(path, 200)
    append(path, "3\n4\n")
    rotate(path, 100)
    append(path, "5\n6\n")
    Path(f"{path}.2").unlink()
    found: list[int] = []
    for reader in range(count):
        feed = GrowingFile(path, offsets=offsets)
        feed.subscribe(reader, count)
        found += taken(feed)
        feed.close()
    assert sorted(found) == [3, 4, 5, 6]


def test_offsets_are_not_taken_for_a_rotated_file(tmp_path: Path) -> None:
    path, offsets = tmp_path / "log", tmp_path / "log.offsets"
    append(path, "0\n1\n2\n3\n")
    append(tmp_path / "log.offsetsabc.tmp", "half of them\n")
    feed = GrowingFile(path, offsets=offsets)
    feed.subscribe(0, 2)
    feed.acknowledge([message.receipt for message in feed.receive(1, 0)])
    feed.close()
    assert offsets.exists()
    again = following(path, offsets=offsets)
    assert taken(again) == [0, 1, 2, 3]
    rotate(path, 100)
    append(path, "4\n")
    assert taken(again) == [4]
    again.close()


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"no folder .*typo"):
        following(tmp_path / "typo" / "log")


def test_damaged_offsets_are_told(tmp_path: Path) -> None:
    offsets = tmp_path / "offsets"
    for text in ("", "{}", '{"places": [[1]]}', '{"places": [["a", 1, 2, 3, 4]]}'):
        offsets.write_text(text)
        with pytest.raises(SourceError, match="does not hold offsets"):
            following(tmp_path / "log", offsets=offsets)


def test_a_feed_can_be_pickled_while_it_is_open(tmp_path: Path) -> None:
    path = tmp_path / "log"
    append(path, "1\n2\n")
    feed = following(path)
    assert feed.receive(1, 0)
    other = pickle.loads(pickle.dumps(feed))
    other.subscribe(0, 1)
    assert taken(other) == [1, 2]
    feed.close()
    other.close()


def test_a_file_that_may_not_be_read(tmp_path: Path) -> None:
    (tmp_path / "log").mkdir()
    with pytest.raises(SourceError, match="no ordinary file"):
        taken(following(tmp_path / "log"))
