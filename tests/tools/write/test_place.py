"""`pack` empties, replaces and removes only what it made, and an older output is there until the new one is."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import feedline
from feedline.errors import BadOption, PackError
from feedline.text import write_tokens
from feedline.tools.write import Stage
from tests.tools.write.stores import DieAt, Mixed, content, in_child

pack: Any = partial(feedline.pack, workers=0, format="tar", samples_per_shard=37, source="mixed")
tokens: Any = partial(write_tokens, ["a", "b"], tokenizer=lambda text: [1], workers=0)


def everything(folder: Path) -> dict[str, bytes | str]:
    """Return all that a folder holds: the bytes of files, the targets of links, and folders."""
    return {
        str(one.relative_to(folder)): os.readlink(one)
        if one.is_symlink()
        else one.read_bytes()
        if one.is_file()
        else ""
        for one in folder.rglob("*")
    }


def refused(folder: Path, match: str, act: Callable[[], object]) -> None:
    """Check that a call is refused, and changes nothing."""
    before = everything(folder)
    with pytest.raises(BadOption, match=match):
        act()
    assert everything(folder) == before


def make(place: Path, what: dict[str, Any] | str) -> None:
    """Make a folder with these files, a file with this text, or a link."""
    if isinstance(what, dict):
        place.mkdir()
        for name, one in what.items():
            make(place / name, one)
    elif what.startswith("-> "):
        place.symlink_to(what[3:])
    else:
        place.write_text(what)


FOREIGN: dict[str, Any] = {
    "folder": {"a.txt": "a"},
    "lock": {"lock": "mine"},
    "file": "precious",
    "link": "-> others",
    "work of another output": {"lock": json.dumps({"feedline": "pack", "out": "another"}), "job.json": "{}"},
}


@pytest.mark.parametrize("foreign", FOREIGN)
def test_nothing_is_changed_in_a_work_folder_that_pack_did_not_make(tmp_path: Path, foreign: str) -> None:
    make(tmp_path / "others", {"a.txt": "a"})
    make(tmp_path / "data.packing", FOREIGN[foreign])
    for act in (pack, tokens):
        source = [Mixed()] if act is pack else []
        for options in ({}, {"restart": True, "overwrite": True}):
            refused(tmp_path, r"data\.packing", partial(act, *source, out=tmp_path / "data", **options))


@pytest.mark.parametrize(
    ("source", "out"),
    [
        ("data.packing", "data"),
        ("data.packing/output/*.txt", "data"),
        ("data/inside", "data"),
        ("data.tar", "data.tar"),
        ("data", "data/inside/out"),
        ("linked", "data/out"),
    ],
)
def test_a_source_that_shares_files_with_the_output_is_refused(tmp_path: Path, source: str, out: str) -> None:
    for name in ("data", "data.packing", "data.packing/output", "data/inside"):
        make(tmp_path / name, {"a.txt": "a", "b.txt": "b"})
    make(tmp_path / "data.tar", "a")
    make(tmp_path / "linked", "-> data")
    refused(
        tmp_path,
        str(tmp_path / source).replace("*", r"\*"),
        lambda: feedline.pack(tmp_path / source, tmp_path / out, format="tar", overwrite=True, restart=True),
    )


@pytest.mark.parametrize(
    ("name", "restart"),
    [("notes.txt", True), ("output/notes.txt", False), ("output/.index/notes.txt", True), ("linked", True)],
)
def test_files_of_the_user_in_a_work_folder_are_not_touched(tmp_path: Path, name: str, restart: bool) -> None:
    assert not in_child(lambda: pack(Mixed(), tmp_path / "data", report=DieAt(90)))
    make(tmp_path / "others", {"a.txt": "a"})
    make(tmp_path / "data.packing" / name, "-> ../others" if name == "linked" else "precious")
    refused(tmp_path, name, lambda: pack(Mixed(), tmp_path / "data", restart=restart))


def test_a_file_that_the_user_adds_during_a_run_is_kept(tmp_path: Path) -> None:
    (tmp_path / "data.packing").mkdir()  # empty, so it may be used
    notes = tmp_path / "data.packing" / "notes.txt"
    pack(Mixed(), tmp_path / "data", report=lambda _: notes.write_text("precious"))
    assert everything(tmp_path / "data.packing") == {"notes.txt": b"precious"}


@pytest.mark.parametrize(
    ("name", "format_"),
    [
        ("notes.txt", "npy"),
        ("more/", "tar"),
        ("feedline.json", "npy"),
        (".index/notes.txt", "tar"),
        ("shard-099999.tar", "tar"),
        ("-", "npy"),
    ],
)
def test_a_folder_with_files_of_the_user_is_not_replaced(tmp_path: Path, name: str, format_: str) -> None:
    out = tmp_path / "out"
    act = partial(feedline.pack, Mixed(10), out, workers=0, format=format_, overwrite=True)
    out.mkdir()  # an empty folder may be replaced
    act()
    if name == "-":  # a folder of the user with the name of a file of ours
        file = next(path for path in out.iterdir() if path.suffix in (".tar", ".npy"))
        file.unlink()
        file.mkdir()
    else:
        (out / name).parent.mkdir(exist_ok=True)
        make(out / name, {} if name.endswith("/") else '{"workers": 4}')
    refused(tmp_path, str(out), act)


def test_a_folder_of_tokens_with_files_of_the_user_is_not_replaced(tmp_path: Path) -> None:
    out = tmp_path / "out"
    tokens(out=out)
    tokens(out=out, overwrite=True)
    (out / "tokens-old.bin").write_bytes(bytes(100))  # bare tokens, not written by feedline
    refused(tmp_path, r"tokens-old\.bin", lambda: tokens(out=out, overwrite=True))


@pytest.mark.parametrize("overwrite", [False, True])
def test_what_appears_at_the_output_meanwhile_is_not_replaced(tmp_path: Path, overwrite: bool) -> None:
    out = tmp_path / "out"

    def report(stage: Stage) -> None:
        if not out.exists():
            make(out, {"notes.txt": "precious"})

    with pytest.raises(BadOption) as caught:
        feedline.pack(Mixed(), out, workers=0, format="npy", overwrite=overwrite, report=report)
    assert (out / "notes.txt").read_text() == "precious"
    (label,) = (tmp_path / "out.packing").rglob("label.npy")
    assert str(label.parent) in caught.value.__notes__[0]
    shutil.rmtree(out)
    assert pack(Mixed(), out).count == 100
    assert os.listdir(tmp_path) == ["out"]


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize(("name", "change"), [("job.json", flip), ("output/shard-000001.tar", os.unlink)])
def test_a_run_whose_work_is_damaged_starts_over(tmp_path: Path, name: str, change: Callable[[Path], None]) -> None:
    """Nothing of the interrupted run is left, even if the new one writes fewer shards."""
    assert not in_child(lambda: pack(Mixed(), tmp_path / "out", samples_per_shard=30, report=DieAt(90)))
    change(tmp_path / "out.packing" / name)
    assert pack(Mixed(), tmp_path / "out", samples_per_shard=30).resumed == 0
    assert content(tmp_path / "out") == content(pack(Mixed(), tmp_path / "whole", samples_per_shard=30).path)
    assert sorted(os.listdir(tmp_path)) == ["out", "whole"]


@pytest.mark.parametrize("name", ["output/shard-000099.tar", "output/.index/shard-000099.tar"])
def test_a_shard_that_the_job_file_does_not_name_is_not_delivered(tmp_path: Path, name: str) -> None:
    assert not in_child(lambda: pack(Mixed(), tmp_path / "data", report=DieAt(90)))
    (tmp_path / "data.packing" / name).write_bytes(b"of a run killed before it was noted")
    assert pack(Mixed(), tmp_path / "data").resumed
    assert content(tmp_path / "data") == content(pack(Mixed(), tmp_path / "whole").path)


def test_two_runs_on_one_output_exclude_each_other(tmp_path: Path) -> None:
    out = tmp_path / "out"

    def second(stage: Stage) -> None:
        with pytest.raises(BadOption, match="Another process is packing"):
            pack(Mixed(), out, restart=True, overwrite=True)

    pack(Mixed(20), out, report=second)


def test_a_run_whose_work_folder_was_replaced_delivers_nothing_of_the_other(tmp_path: Path) -> None:
    out, work = tmp_path / "data", tmp_path / "data.packing"

    def replace(stage: Stage) -> None:
        if stage.done >= 90 and not (tmp_path / "moved").exists():
            work.rename(tmp_path / "moved")
            assert not in_child(lambda: pack(Mixed(90), out, report=DieAt(80)))

    with pytest.raises(PackError, match="moved"):
        pack(Mixed(), out, report=replace, verify=False)
    assert not out.exists()
    assert pack(Mixed(90), out).resumed


def test_the_older_output_is_restored_if_the_new_one_cannot_be_renamed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = content(pack(Mixed(10), tmp_path / "out").path)
    replace = os.replace

    def refuse(source: Path, target: Path) -> None:
        if target == tmp_path / "out":
            raise OSError("cannot be renamed")
        replace(source, target)

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(OSError, match="cannot be renamed"):
        pack(Mixed(), tmp_path / "out", overwrite=True)
    assert content(tmp_path / "out") == old
