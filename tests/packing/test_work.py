from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from feedline.errors import BadOption
from feedline.packing.work import WorkFolder
from tests.packing.stores import in_child

JOB = {"samples": 3, "format": "npy", "fields": [["a", "b"]]}


def left(out: Path, job: object = JOB) -> None:
    """Leave a folder as a killed process does, with something in it to go on with."""
    folder = out.with_name(f"{out.name}.packing")
    folder.mkdir()
    (folder / "job.json").write_text(json.dumps(job))
    (folder / "output.state").touch()


def test_a_new_folder(tmp_path: Path) -> None:
    work = WorkFolder(tmp_path / "out", JOB, restart=False)
    assert work.is_empty
    assert work.done is None
    assert not WorkFolder.is_left(tmp_path / "out")
    work.remove()
    assert list(tmp_path.iterdir()) == []
    work.close()


def test_it_is_gone_on_with_by_the_same_job_only(tmp_path: Path) -> None:
    out = tmp_path / "out"
    left(out)
    assert WorkFolder.is_left(out)
    work = WorkFolder(out, {**JOB, "fields": (("a", "b"),)}, restart=False)
    assert not work.is_empty
    work.close()
    for other, text in (
        ({**JOB, "samples": 4}, "samples=3, but now it is 4"),
        ({**JOB, "new": 1}, "new=None, but now it is 1"),
        ({"samples": 3, "format": "npy"}, "fields="),
        ({**JOB, "dataset": "abc"}, "another dataset: what it consists of"),
    ):
        with pytest.raises(BadOption, match=text):
            WorkFolder(out, other, restart=False)
    assert (tmp_path / "out.packing" / "output.state").exists()
    work = WorkFolder(out, {**JOB, "samples": 4}, restart=True)
    assert work.is_empty
    work.close()


def test_what_has_no_job_is_never_gone_on_with(tmp_path: Path) -> None:
    """It is half of a folder that was being removed."""
    out = tmp_path / "out"
    left(out)
    (tmp_path / "out.packing" / "job.json").unlink()
    (tmp_path / "out.packing" / "below").mkdir()
    assert not WorkFolder.is_left(out)
    work = WorkFolder(out, JOB, restart=False)
    assert work.is_empty
    work.close()


def test_two_at_once(tmp_path: Path) -> None:
    work = WorkFolder(tmp_path / "out", JOB, restart=False)
    for restart in (False, True):
        with pytest.raises(BadOption, match="Another process is packing"):
            WorkFolder(tmp_path / "out", JOB, restart=restart)
    work.close()
    WorkFolder(tmp_path / "out", JOB, restart=False).close()


def test_the_lock_goes_with_the_process(tmp_path: Path) -> None:
    def die() -> None:
        WorkFolder(tmp_path / "out", JOB, restart=False)
        os.kill(os.getpid(), 9)

    assert not in_child(die)
    WorkFolder(tmp_path / "out", JOB, restart=False).close()


@pytest.mark.parametrize("is_folder", [False, True])
@pytest.mark.parametrize("is_there", [False, True])
def test_delivery(tmp_path: Path, is_folder: bool, is_there: bool) -> None:
    out = tmp_path / "out"
    work = WorkFolder(out, JOB, restart=False)
    for place, text in ((work.path / "built", "new"), (out, "old"))[: 1 + is_there]:
        if is_folder:
            place.mkdir()
            place = place / "file"
        place.write_text(text)
    work.note_done({"count": 3})
    assert work.done == {"count": 3}
    work.deliver(work.path / "built")
    assert os.listdir(tmp_path) == ["out"]
    assert (out / "file" if is_folder else out).read_text() == "new"


def test_delivery_that_was_interrupted_after_the_renaming(tmp_path: Path) -> None:
    out = tmp_path / "out"
    work = WorkFolder(out, JOB, restart=False)
    (work.path / "built").write_text("new")
    work.note_done({})
    shutil.move(work.path / "built", out)
    work.deliver(work.path / "built")
    assert out.read_text() == "new"
    assert os.listdir(tmp_path) == ["out"]
