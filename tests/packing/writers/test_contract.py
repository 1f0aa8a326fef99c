"""What every writer promises: an output gone on with has the bytes of one that was not interrupted."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from feedline.errors import PackError
from feedline.packing.digest import digest_of
from feedline.packing.formats import FORMATS as TABLE
from feedline.packing.schema import Column, Schema
from feedline.packing.writers.contract import Layout, Summary, check_schema, write_durably
from tests.packing.stores import FORMATS, content, mixed
from tests.packing.writers.outputs import finish, put, samples_in, writer_of, written

every_format = pytest.mark.parametrize("format_", FORMATS)
SAMPLES = [mixed(number) for number in range(40)]


@every_format
def test_what_was_written_is_read(tmp_path: Path, format_: str) -> None:
    path = written(format_, tmp_path, SAMPLES)
    assert list(map(digest_of, samples_in(format_, path))) == list(map(digest_of, SAMPLES))
    assert os.listdir(tmp_path) == [path.name], "its own files are gone"
    assert TABLE[format_].module.stored(path)["count"] == 40


@every_format
def test_one_sample(tmp_path: Path, format_: str) -> None:
    assert len(samples_in(format_, written(format_, tmp_path, SAMPLES[:1]))) == 1


@every_format
@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_what_comes_after_a_checkpoint_is_taken_back(
    tmp_path_factory: pytest.TempPathFactory, format_: str, data: st.DataObject
) -> None:
    """However much was written after the last checkpoint, by a writer that was closed, or was just left."""
    kept = data.draw(st.integers(0, 20), "kept")
    lost = data.draw(st.integers(0, 20), "lost")
    folder = tmp_path_factory.mktemp("writer")
    writer = writer_of(format_, folder)
    writer.begin(Schema.of(SAMPLES))
    put(writer, SAMPLES[:kept])
    writer.checkpoint({"at": kept})
    put(writer, SAMPLES[20 : 20 + lost])
    writer.close()
    again = writer_of(format_, folder)
    assert again.resume() == {"at": kept}
    assert again.schema == Schema.of(SAMPLES)
    put(again, SAMPLES[kept:])
    finish(again, 40)

    whole = tmp_path_factory.mktemp("whole")
    straight = writer_of(format_, whole)
    straight.begin(Schema.of(SAMPLES))
    put(straight, SAMPLES[:kept])
    straight.checkpoint({"at": kept})
    put(straight, SAMPLES[kept:])
    finish(straight, 40)
    assert content(again.path) == content(straight.path)


@every_format
def test_a_begun_output_replaces_what_was_there(tmp_path: Path, format_: str) -> None:
    first = writer_of(format_, tmp_path)
    first.begin(Schema.of(SAMPLES))
    put(first, SAMPLES)
    first.checkpoint({})
    first.close()
    path = writer_of(format_, tmp_path)
    path.begin(Schema.of(SAMPLES))
    put(path, SAMPLES[:3])
    finish(path, 3)
    assert len(samples_in(format_, path.path)) == 3


@every_format
def test_close_may_come_at_any_time_and_twice(tmp_path: Path, format_: str) -> None:
    writer = writer_of(format_, tmp_path)
    writer.close()
    writer.begin(Schema.of(SAMPLES))
    put(writer, SAMPLES[:5])
    writer.close()
    writer.close()
    writer.clear()


@every_format
@pytest.mark.parametrize("name", ["näme ☃", "a.b", "a b", "x" * 80, "%s", "select", "con", "0", "-x", "a:b", "path"])
def test_odd_names_of_fields(tmp_path: Path, format_: str, name: str) -> None:
    samples: list[dict[str, Any]] = [{name: number, "x": "ä"} for number in range(3)]
    assert samples_in(format_, written(format_, tmp_path, samples)) == samples


def test_a_format_that_cannot_hold_a_column() -> None:
    schema = Schema((Column("x", "bytes"),))
    with pytest.raises(PackError, match=r"npy cannot hold the field 'x' \(bytes\): arrays cut"):
        check_schema(TABLE["npy"].writer, schema)
    check_schema(TABLE["lmdb"].writer, schema)


def test_a_file_is_replaced_as_a_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_the_summary_is_kept_in_json() -> None:
    schema = Schema.of([{"x": np.zeros(2)}])
    facts = Summary(3, "00", "tuple", 1, {"classes": ["a"]}).as_json(schema)
    assert (facts["feedline"], facts["count"], facts["form"], facts["skipped"]) == (1, 3, "tuple", 1)
    assert Schema.from_json(facts["fields"]) == schema
    assert Layout().compression is None
