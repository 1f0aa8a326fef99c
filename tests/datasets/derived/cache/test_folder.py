"""Sample stores on disk are created once, and never in a folder with other files."""

import os
from pathlib import Path

import pytest

from feedline.datasets.derived.cache.sample_store import (
    FILE,
    Encoded,
    Head,
    Kind,
    drop_other,
    has_store,
    head_of,
    read_store,
    refuse_whole,
    write_store,
)
from feedline.errors import BadOption, SourceError

pytestmark = pytest.mark.sample(4)

HEAD = Head(b"h" * 32, 10)


def ensure(folder: Path, head: Head = HEAD) -> bool:
    dropped = drop_other(folder, head)
    store = write_store(folder, 1 << 20)
    assert store.open(head)
    store.close()
    return not dropped


def test_a_store_is_created_once(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    assert ensure(folder)
    store = write_store(folder, None)
    store.open(HEAD)
    store.put(3, Encoded(Kind.RECORD, b"three"))
    assert ensure(folder)
    other = read_store(folder)
    assert other.open(HEAD)
    assert isinstance(other.get(3), Encoded)
    store.close()
    other.close()


def test_a_store_of_another_dataset_is_dropped(tmp_path: Path) -> None:
    ensure(tmp_path)
    other = Head(b"o" * 32, 10)
    assert not ensure(tmp_path, other)
    assert head_of(tmp_path) == other


def test_nothing_else_is_left_in_the_folder(tmp_path: Path) -> None:
    ensure(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [FILE]


@pytest.mark.parametrize("before", [None, Head(b"o" * 32, 10)])
def test_one_of_several_processes_creates_the_store(before: Head | None, tmp_path: Path) -> None:
    if before is not None:
        ensure(tmp_path, before)
    children = []
    for number in range(8):
        pid = os.fork()
        if pid == 0:
            drop_other(tmp_path, HEAD)
            store = write_store(tmp_path, 1 << 20)
            store.open(HEAD)
            store.put(number, Encoded(Kind.RECORD, b"%d" % number))
            os._exit(0)
        children.append(pid)
    for pid in children:
        assert os.waitpid(pid, 0)[1] == 0
    store = read_store(tmp_path)
    assert store.open(HEAD)
    assert all(isinstance(store.get(number), Encoded) for number in range(8))
    store.close()


def test_a_program_killed_before_it_created_the_store_does_not_block_others(tmp_path: Path) -> None:
    (tmp_path / FILE).touch()
    assert not has_store(tmp_path)
    assert head_of(tmp_path) is None
    assert ensure(tmp_path)


def test_rejects_a_file_as_folder(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SourceError, match="folder that you can write to"):
        ensure(tmp_path / "file")


def test_rejects_a_folder_with_other_files(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("mine")
    with pytest.raises(BadOption, match=r"other files, such as 'thesis\.tex'.*new or empty"):
        ensure(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_other_files_in_a_folder_of_samples_are_kept(tmp_path: Path) -> None:
    ensure(tmp_path)
    (tmp_path / "notes.txt").write_text("mine")
    assert not ensure(tmp_path, Head(b"o" * 32, 10))
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_rejects_a_folder_of_precomputed_samples(tmp_path: Path) -> None:
    ensure(tmp_path)
    refuse_whole(tmp_path)
    store = write_store(tmp_path, 1 << 20)
    store.note_whole()
    store.close()
    with pytest.raises(BadOption, match=r"precompute stored.*folder of its own"):
        refuse_whole(tmp_path)
