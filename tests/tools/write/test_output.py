from __future__ import annotations

import json
import os
import tarfile
from pathlib import Path

import pytest

from feedline.datasets.framework.manifest import FACTS
from feedline.datasets.framework.store import write_stored
from feedline.errors import BadOption
from feedline.system.files import write_durably
from feedline.tools.write.output import Output
from feedline.tools.write.schema import Sample, Schema
from feedline.tools.write.work import WorkFolder
from feedline.tools.write.writers.contract import FORMATS as TABLE
from feedline.tools.write.writers.contract import Summary
from tests.tools.write.stores import SHARDED, content, in_child, mixed, read_files

pytestmark = pytest.mark.sample(5)

SAMPLES = [mixed(number) for number in range(20)]
JPG, PNG = b"\xff\xd8\xff jpg", b"\x89PNG\r\n\x1a\n png"
every_format = pytest.mark.parametrize("format_", SHARDED)


def output_in(folder: Path, format_: str, *, sharded: bool = True) -> Output:
    folder.mkdir(exist_ok=True)
    output = Output(folder, TABLE[format_], None, sharded=sharded)
    output.schema = Schema.of(SAMPLES)
    return output


def put(output: Output, format_: str, samples: list[Sample]) -> None:
    writer = TABLE[format_].writer
    output.write([writer.encoded(output.schema, output.schema.fitted(sample)) for sample in samples])


def fill(output: Output, format_: str, first: int, stop: int) -> None:
    """Write a shard."""
    put(output, format_, SAMPLES[first:stop])
    output.finish_shard(Summary(stop - first))


@pytest.mark.slow
@every_format
def test_shards_are_numbered_and_read_back(tmp_path: Path, format_: str) -> None:
    output = output_in(tmp_path, format_)
    for first, stop in ((0, 7), (7, 14), (14, 20)):
        fill(output, format_, first, stop)
    output.finish(Summary(20))
    assert [path.name.partition(".")[0] for path in output.files] == ["shard-000000", "shard-000001", "shard-000002"]
    stored = json.loads((output.path / FACTS).read_text())
    assert stored["count"] == 20
    found = read_files(format_, output.files, stored)
    assert [sample["label"] for sample in found] == [sample["label"] for sample in SAMPLES]
    output.close()


@every_format
def test_resuming_after_a_complete_shard_gives_the_same_output(tmp_path: Path, format_: str) -> None:
    whole, other = (output_in(tmp_path / name, format_) for name in ("whole", "other"))
    for output in (whole, other):
        fill(output, format_, 0, 7)
    put(other, format_, SAMPLES[17:])  # lost: the shard is incomplete
    other.close()
    again = output_in(tmp_path / "other", format_)
    again.resume(other.entries, 7, other.schema)
    for output in (whole, again):
        fill(output, format_, 7, 14)
        output.finish(Summary(14))
        output.close()
    assert content(again.path) == content(whole.path)
    again.files[0].unlink()


def test_keys_continue_from_shard_to_shard(tmp_path: Path) -> None:
    output = output_in(tmp_path, "tar")
    fill(output, "tar", 0, 2)
    fill(output, "tar", 2, 4)
    output.close()
    keys: list[str] = []
    for path in output.files:
        with tarfile.open(path) as archive:
            keys += dict.fromkeys(name.partition(".")[0] for name in archive.getnames())
    assert keys == [f"{number:09d}" for number in range(4)]


def test_the_metadata_lists_the_extensions_of_all_shards(tmp_path: Path) -> None:
    output = output_in(tmp_path, "tar")
    output.schema = Schema.of([{"x": JPG}])
    for data in (JPG, PNG, JPG):
        put(output, "tar", [{"x": data}])
        output.finish_shard(Summary(1))
    output.finish(Summary(3))
    stored = json.loads((output.path / FACTS).read_text())
    assert stored["fields"][0]["extension"] == "jpg;png"
    assert [sample["x"] for sample in read_files("tar", output.files, stored)] == [JPG, PNG, JPG]


def test_an_unsharded_output_leaves_no_other_files(tmp_path: Path) -> None:
    output = output_in(tmp_path, "npy", sharded=False)
    put(output, "npy", SAMPLES)
    output.finish(Summary(20))
    output.close()
    assert output.files == [output.path]
    assert os.listdir(tmp_path) == [output.path.name], "nothing else is left"


def test_a_file_is_replaced_atomically(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    write_durably(path, b"old")

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", fail)
        with pytest.raises(OSError, match="No space"):
            write_durably(path, b"new")
    assert path.read_bytes() == b"old"
    write_durably(path, b"new")
    assert path.read_bytes() == b"new"
    assert os.listdir(tmp_path) == ["file"]


# -- the folder -------------------------------------------------------------------------------------------------------

JOB = {"samples": 3, "format": "npy", "fields": [["a", "b"]]}


def left(out: Path, job: object = JOB) -> None:
    """Leave a work folder behind as a killed process does, with progress to resume from."""
    folder = out.with_name(f"{out.name}.packing")
    folder.mkdir()
    (folder / "lock").write_text(json.dumps({"feedline": "pack", "out": out.name}))
    write_stored(folder / "job.json", [json.dumps(job).encode()])
    write_stored(folder / "note.json", [b'{"shards": 1}'])
    (folder / "below").mkdir()


def test_a_work_folder_without_progress_is_removed(tmp_path: Path) -> None:
    work = WorkFolder(tmp_path / "out", JOB, restart=False, check=bool)
    assert work.note is None
    assert not WorkFolder.is_left(tmp_path / "out")
    work.close()
    assert list(tmp_path.iterdir()) == [], "there is nothing to resume"
    work.close()


def test_a_note_survives_the_process(tmp_path: Path) -> None:
    work = WorkFolder(tmp_path / "out", JOB, restart=False, check=bool)
    work.write_note({"shards": 3})
    work.close()
    assert WorkFolder.is_left(tmp_path / "out")
    again = WorkFolder(tmp_path / "out", JOB, restart=False, check=bool)
    assert again.note == {"shards": 3}
    again.close()


def test_only_the_same_job_resumes_a_work_folder(tmp_path: Path) -> None:
    out = tmp_path / "out"
    left(out)
    assert WorkFolder.is_left(out)
    work = WorkFolder(out, {**JOB, "fields": (("a", "b"),)}, restart=False, check=bool)
    assert work.note == {"shards": 1}
    work.close()
    for other, text in (
        ({**JOB, "samples": 4}, "samples=3, but now it is 4"),
        ({**JOB, "new": 1}, "new=None, but now it is 1"),
        ({"samples": 3, "format": "npy"}, "fields="),
        ({**JOB, "dataset": "abc"}, "another dataset: its contents"),
    ):
        with pytest.raises(BadOption, match=text):
            WorkFolder(out, other, restart=False, check=bool)
    assert (tmp_path / "out.packing" / "below").exists()
    work = WorkFolder(out, {**JOB, "samples": 4}, restart=True, check=bool)
    assert work.note is None
    assert not (tmp_path / "out.packing" / "below").exists()
    work.close()


def test_a_work_folder_is_locked(tmp_path: Path) -> None:
    work = WorkFolder(tmp_path / "out", JOB, restart=False, check=bool)
    for restart in (False, True):
        with pytest.raises(BadOption, match="Another process is packing"):
            WorkFolder(tmp_path / "out", JOB, restart=restart, check=bool)
    work.close()
    WorkFolder(tmp_path / "out", JOB, restart=False, check=bool).close()


def test_the_lock_is_released_when_its_process_dies(tmp_path: Path) -> None:
    def die() -> None:
        WorkFolder(tmp_path / "out", JOB, restart=False, check=bool)
        os.kill(os.getpid(), 9)

    assert not in_child(die)
    WorkFolder(tmp_path / "out", JOB, restart=False, check=bool).close()


@pytest.mark.parametrize("is_folder", [False, True])
@pytest.mark.parametrize("is_there", [False, True])
def test_delivering_replaces_the_old_output(tmp_path: Path, is_folder: bool, is_there: bool) -> None:
    out = tmp_path / "out"
    work = WorkFolder(out, JOB, restart=False, check=bool)
    work.write_note({"shards": 1})
    for place, text in ((work.path / "built", "new"), (out, "old"))[: 1 + is_there]:
        if is_folder:
            place.mkdir()
            place = place / "file"
        place.write_text(text)
    work.deliver(work.path / "built")
    work.close()
    assert os.listdir(tmp_path) == ["out"]
    assert (out / "file" if is_folder else out).read_text() == "new"


def test_the_old_output_is_restored_if_delivery_fails(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "file").write_text("old")
    work = WorkFolder(out, JOB, restart=False, check=bool)
    with pytest.raises(FileNotFoundError):
        work.deliver(work.path / "not built")
    work.close()
    assert (out / "file").read_text() == "old"
