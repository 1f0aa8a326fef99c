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
from feedline.errors import BadOption
from feedline.text import write_tokens
from feedline.tools.write import Stage
from tests.tools.cli.packing import fails, run
from tests.tools.write.stores import DieAt, Mixed, content, in_child

pack: Any = partial(feedline.pack, workers=0, format="tar", samples_per_shard=37)


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


@pytest.fixture
def source(tmp_path: Path) -> Path:
    (tmp_path / "source").mkdir()
    for name in "abc":
        (tmp_path / "source" / f"{name}.txt").write_text(name)
    return tmp_path / "source"


FOREIGN: dict[str, Any] = {
    "folder": {"a.txt": "a"},
    "lock": {"lock": "mine"},
    "files beside an empty lock": {"lock": "", "a.txt": "a"},
    "file": "precious",
    "link": "-> others",
    "linked lock": {"lock": "-> ../elsewhere", "a.txt": "a"},
    "folder named lock": {"lock": {}},
    "work of another output": {"lock": json.dumps({"feedline": "pack", "out": "another"}), "job.json": "{}"},
}


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


@pytest.mark.parametrize("foreign", FOREIGN)
@pytest.mark.parametrize("options", [(), ("--restart", "--overwrite")])
def test_nothing_is_changed_in_a_work_folder_that_pack_did_not_make(
    tmp_path: Path, source: Path, capsys: pytest.CaptureFixture[str], foreign: str, options: tuple[str]
) -> None:
    make(tmp_path / "others", {"a.txt": "a"})
    make(tmp_path / "data.packing", FOREIGN[foreign])
    before = everything(tmp_path)
    assert "data.packing" in fails(capsys, source, tmp_path / "data", "--format", "tar", *options)
    assert everything(tmp_path) == before
    with pytest.raises(BadOption, match=r"data\.packing"):
        write_tokens(["a"], tmp_path / "data", lambda text: [1], workers=0, restart=bool(options))
    assert everything(tmp_path) == before


def test_an_empty_work_folder_is_used(tmp_path: Path, source: Path) -> None:
    (tmp_path / "data.packing").mkdir()
    run(source, tmp_path / "data", "--format", "tar")
    assert sorted(os.listdir(tmp_path)) == ["data", "source"]


@pytest.mark.parametrize(
    ("name", "out"),
    [
        ("data.packing", "data"),
        ("data.packing/output", "data"),
        ("data.packing/output/*.txt", "data"),
        ("data/inside", "data"),
        ("data.tar", "data.tar"),
    ],
)
def test_a_source_that_the_run_would_delete_is_refused(
    tmp_path: Path, source: Path, capsys: pytest.CaptureFixture[str], name: str, out: str
) -> None:
    place = tmp_path / name
    folder = place.parent if "." in place.name and "packing" not in place.name else place
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "a.txt").write_text("a")
    (folder / "data.tar").write_text("a")
    before = everything(tmp_path)
    message = fails(capsys, place, tmp_path / out, "--format", "tar", "--overwrite", "--restart")
    assert str(place) in message
    assert everything(tmp_path) == before


@pytest.mark.parametrize("name", ["notes.txt", "output/notes.txt", "output/.index/notes.txt", "linked"])
@pytest.mark.parametrize("restart", [False, True])
def test_files_of_the_user_in_a_work_folder_are_not_touched(
    tmp_path: Path, source: Path, name: str, restart: bool
) -> None:
    assert not in_child(lambda: pack(Mixed(), tmp_path / "data", report=DieAt(90)))
    if name == "linked":
        (tmp_path / "data.packing" / name).symlink_to(source)
    else:
        (tmp_path / "data.packing" / name).write_text("precious")
    before = everything(tmp_path)
    with pytest.raises(BadOption, match=name):
        pack(Mixed(), tmp_path / "data", restart=restart)
    assert everything(tmp_path) == before


def test_a_file_that_the_user_adds_during_a_run_is_kept(tmp_path: Path) -> None:
    notes = tmp_path / "data.packing" / "notes.txt"
    pack(Mixed(), tmp_path / "data", report=lambda _: notes.write_text("precious"))
    assert everything(tmp_path / "data.packing") == {"notes.txt": b"precious"}


@pytest.mark.parametrize("name", ["output/shard-000099.tar", "output/.index/shard-000099.tar"])
def test_a_shard_that_the_job_file_does_not_name_is_not_delivered(tmp_path: Path, name: str) -> None:
    act = partial(pack, source="mixed")
    assert not in_child(lambda: act(Mixed(), tmp_path / "data", report=DieAt(90)))
    (tmp_path / "data.packing" / name).write_bytes(b"of a run killed before it was noted")
    assert act(Mixed(), tmp_path / "data").resumed
    assert content(tmp_path / "data") == content(act(Mixed(), tmp_path / "whole").path)


def test_an_older_output_is_back_even_if_its_run_is_not_resumed(tmp_path: Path) -> None:
    older = content(pack(Mixed(10), tmp_path / "data").path)
    assert not in_child(lambda: pack(Mixed(), tmp_path / "data", overwrite=True, report=DieAt(90)))
    # As if it had been killed between its two renames.
    os.rename(tmp_path / "data", tmp_path / "data.packing" / "replaced")
    with pytest.raises(BadOption):
        pack(Mixed(), tmp_path / "data", overwrite=True, samples_per_shard=50)
    assert content(tmp_path / "data") == older


# -- what is replaced -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["notes.txt", "more", "feedline.json", ".index/notes.txt", "shard-099999.tar", "-"])
@pytest.mark.parametrize("format_", ["tar", "npy"])
def test_a_folder_with_files_of_the_user_is_not_replaced(
    tmp_path: Path, source: Path, capsys: pytest.CaptureFixture[str], name: str, format_: str
) -> None:
    out = tmp_path / "out"
    feedline.pack(Mixed(), out, workers=0, format=format_)
    (out / name).parent.mkdir(exist_ok=True)
    if name == "-":  # a folder of the user with the name of a file of ours
        file = next(path for path in out.iterdir() if path.suffix in (".tar", ".npy"))
        file.unlink()
        file.mkdir()
    elif name == "more":
        (out / name).mkdir()
    else:
        (out / name).write_text('{"workers": 4}')
    before = everything(tmp_path)
    assert str(out) in fails(capsys, source, out, "--format", format_, "--overwrite")
    assert everything(tmp_path) == before


def test_an_empty_folder_may_be_replaced(tmp_path: Path, source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "out").mkdir()
    assert "--overwrite" in fails(capsys, source, tmp_path / "out", "--format", "tar")
    run(source, tmp_path / "out", "--format", "tar", "--overwrite")
    assert sorted(os.listdir(tmp_path)) == ["out", "source"]


def test_a_folder_of_tokens_with_files_of_the_user_is_not_replaced(tmp_path: Path) -> None:
    out = tmp_path / "out"
    write = partial(write_tokens, ["a", "b"], out, lambda text: [1], workers=0, overwrite=True)
    write()
    (out / "tokens-old.bin").write_bytes(bytes(100))  # bare tokens, not written by feedline
    before = everything(tmp_path)
    with pytest.raises(BadOption, match=r"tokens-old\.bin"):
        write()
    assert everything(tmp_path) == before


@pytest.mark.parametrize("overwrite", [False, True])
def test_what_appears_at_the_output_meanwhile_is_not_replaced(tmp_path: Path, overwrite: bool) -> None:
    out = tmp_path / "out"

    def report(stage: Stage) -> None:
        if not out.exists():
            out.mkdir()
            (out / "notes.txt").write_text("precious")

    with pytest.raises(BadOption) as caught:
        feedline.pack(Mixed(), out, workers=0, format="npy", overwrite=overwrite, report=report)
    assert (out / "notes.txt").read_text() == "precious"
    (label,) = (tmp_path / "out.packing").rglob("label.npy")
    assert str(label.parent) in caught.value.__notes__[0]
    shutil.rmtree(out)
    assert pack(Mixed(), out).count == 100
    assert os.listdir(tmp_path) == ["out"]


def crashes(act: Callable[[Path], object], base: Path, check: Callable[[Path], None], *, least: int) -> None:
    """Kill a run at each step, on a copy of `base` each time, and check what is left."""
    tried = 0
    while True:
        folder = base.with_name(f"{base.name}-{tried}")
        shutil.copytree(base, folder)
        if in_child(partial(act, folder), kill_at=tried + 1):
            break
        check(folder)
        tried += 1
    assert tried >= least


@pytest.mark.slow
@pytest.mark.parametrize("format_", ["tar", "npy"])
def test_the_older_output_is_not_lost_at_any_step(tmp_path: Path, format_: str) -> None:
    base = tmp_path / "base"
    base.mkdir()
    options: Any = {"samples_per_shard": 37} if format_ == "tar" else {}
    act: Any = partial(feedline.pack, format=format_, workers=0, **options)
    act(Mixed(10), base / "out")
    older = content(base / "out")
    newer = content(act(Mixed(), tmp_path / "newer").path)

    def check(folder: Path) -> None:
        out = folder / "out"
        if out.exists():
            assert content(out) in (older, newer)
        else:  # a run that may replace nothing gives the older output its name again, and then finds that it exists
            with pytest.raises(BadOption, match="exists already"):
                act(Mixed(), out, restart=True)
            assert content(out) == older
        act(Mixed(), out, overwrite=True)
        assert content(out) == newer
        assert os.listdir(folder) == ["out"]

    crashes(lambda folder: act(Mixed(), folder / "out", overwrite=True), base, check, least=15)


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("change", [cut, flip, os.unlink])
@pytest.mark.parametrize("name", ["job.json", "output/shard-000001.tar"])
def test_a_run_whose_work_is_damaged_starts_over(tmp_path: Path, name: str, change: Callable[[Path], None]) -> None:
    """Nothing of the interrupted run is left, even if the new one writes fewer shards."""
    act = partial(feedline.pack, workers=0, format="tar", source="mixed", samples_per_shard=16)
    assert not in_child(lambda: act(Mixed(), tmp_path / "out", report=DieAt(90)))
    change(tmp_path / "out.packing" / name)
    packed = act(Mixed(), tmp_path / "out")
    assert (packed.count, packed.resumed) == (100, 0)
    assert content(packed.path) == content(act(Mixed(), tmp_path / "whole").path)
    assert sorted(os.listdir(tmp_path)) == ["out", "whole"]


@pytest.mark.slow
def test_a_run_that_starts_over_can_be_killed_at_any_step(tmp_path: Path) -> None:
    base = tmp_path / "base"
    base.mkdir()
    assert not in_child(lambda: pack(Mixed(), base / "out"), kill_at=20)
    whole = content(pack(Mixed(), tmp_path / "whole").path)

    def check(folder: Path) -> None:
        pack(Mixed(), folder / "out", overwrite=True)
        assert content(folder / "out") == whole
        assert os.listdir(folder) == ["out"]

    crashes(lambda folder: pack(Mixed(), folder / "out", restart=True), base, check, least=15)


@pytest.mark.parametrize("overwrite", [False, True])
def test_two_runs_on_one_output_exclude_each_other(tmp_path: Path, overwrite: bool) -> None:
    out = tmp_path / "out"

    def second(stage: Stage) -> None:
        with pytest.raises(BadOption, match="Another process is packing"):
            pack(Mixed(), out, restart=overwrite, overwrite=overwrite)

    pack(Mixed(20), out, report=second)


def test_the_older_output_is_restored_if_the_new_one_cannot_be_renamed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = content(pack(Mixed(10), tmp_path / "out").path)

    def fail(stage: Stage) -> None:
        if stage.done == 100:
            monkeypatch.setattr(os, "replace", refuse)

    def refuse(source: Path, target: Path) -> None:
        if target == tmp_path / "out":
            raise OSError("cannot be renamed")
        rename(source, target)

    rename = os.rename
    with pytest.raises(OSError, match="cannot be renamed"):
        pack(Mixed(), tmp_path / "out", overwrite=True, report=fail)
    assert content(tmp_path / "out") == old
