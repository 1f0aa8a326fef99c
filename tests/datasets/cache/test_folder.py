"""Vaults on disk come to be at once, and once."""

import os
from pathlib import Path

import pytest

from feedline.datasets.cache.folder import FILE, ensure_vault, head_of, make_vault, open_vault, read_vault
from feedline.datasets.cache.vault import Found, Head, Kind
from feedline.errors import BadOption, SourceError

HEAD = Head(b"h" * 32, 10)


def test_a_vault_is_made_once(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    assert ensure_vault(folder, HEAD)
    vault = open_vault(folder, 1 << 20)
    vault.open(HEAD)
    vault.put(3, Kind.RECORD, b"three")
    assert ensure_vault(folder, HEAD)
    other = read_vault(folder)
    assert other.open(HEAD)
    assert isinstance(other.get(3), Found)
    vault.close()
    other.close()


def test_another_one_is_dropped(tmp_path: Path) -> None:
    ensure_vault(tmp_path, HEAD)
    other = Head(b"o" * 32, 10)
    assert not ensure_vault(tmp_path, other)
    assert head_of(tmp_path) == other


def test_nothing_else_is_left_in_the_folder(tmp_path: Path) -> None:
    ensure_vault(tmp_path, HEAD)
    assert sorted(path.name for path in tmp_path.iterdir()) == [FILE, f"{FILE}.lock"]


def test_of_several_processes_one_makes_it(tmp_path: Path) -> None:
    children = []
    for number in range(8):
        pid = os.fork()
        if pid == 0:
            ensure_vault(tmp_path, HEAD)
            vault = open_vault(tmp_path, 1 << 20)
            vault.open(HEAD)
            vault.put(number, Kind.RECORD, b"%d" % number)
            os._exit(0)
        children.append(pid)
    for pid in children:
        assert os.waitpid(pid, 0)[1] == 0
    vault = read_vault(tmp_path)
    assert vault.open(HEAD)
    assert all(isinstance(vault.get(number), Found) for number in range(8))
    vault.close()


def test_a_folder_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SourceError, match="folder that can be written to"):
        ensure_vault(tmp_path / "file", HEAD)


def test_a_folder_with_other_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("mine")
    with pytest.raises(BadOption, match=r"other files, such as 'thesis\.tex'.*new or empty"):
        ensure_vault(tmp_path, HEAD)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_other_files_in_a_folder_of_samples_stay(tmp_path: Path) -> None:
    ensure_vault(tmp_path, HEAD)
    (tmp_path / "notes.txt").write_text("mine")
    assert not ensure_vault(tmp_path, Head(b"o" * 32, 10))
    make_vault(tmp_path, HEAD)
    assert (tmp_path / "notes.txt").read_text() == "mine"


@pytest.mark.parametrize("left", [".lock", "x1y2.tmp"])
def test_what_a_killed_program_has_left_is_no_hindrance(left: str, tmp_path: Path) -> None:
    (tmp_path / f"{FILE}{left}").touch()
    assert ensure_vault(tmp_path, HEAD)


def test_a_whole_vault_is_kept_on_request(tmp_path: Path) -> None:
    ensure_vault(tmp_path, HEAD)
    vault = open_vault(tmp_path, 1 << 20)
    vault.open(HEAD)
    vault.note_whole()
    vault.close()
    other = Head(b"o" * 32, 10)
    with pytest.raises(BadOption, match=r"precompute has stored.*folder of its own"):
        ensure_vault(tmp_path, other, keeps_whole=True)
    assert head_of(tmp_path) == HEAD
    assert not ensure_vault(tmp_path, other)
