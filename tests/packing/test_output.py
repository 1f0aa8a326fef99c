from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from feedline.packing.formats import FORMATS as TABLE
from feedline.packing.output import META, Shards, Single, shard_paths
from feedline.packing.schema import Sample, Schema
from feedline.packing.writers.contract import Layout, Summary
from tests.packing.stores import SHARDED, content, mixed

SAMPLES = [mixed(number) for number in range(20)]
JPG, PNG = b"\xff\xd8\xff jpg", b"\x89PNG\r\n\x1a\n png"
every_format = pytest.mark.parametrize("format_", SHARDED)


def put(output: Single | Shards, format_: str, samples: list[Sample]) -> None:
    writer = TABLE[format_].writer
    output.write([writer.encoded(output.schema, output.schema.fitted(sample)) for sample in samples])


def note(count: int, shard: int) -> dict[str, Any]:
    return {"count": count, "shard": {"count": shard}}


def fill(output: Shards, format_: str, first: int, stop: int, done: int = 0) -> None:
    """Write a shard, with a checkpoint as `pack` makes it before a shard is left."""
    put(output, format_, SAMPLES[first + done : stop])
    output.checkpoint(note(stop, stop - first))
    output.leave(Summary(stop - first, "00"))


@every_format
def test_shards(tmp_path: Path, format_: str) -> None:
    output = Shards(tmp_path, TABLE[format_], Layout())
    assert output.resume() is None
    output.begin(Schema.of(SAMPLES))
    for first, stop in ((0, 7), (7, 14), (14, 20)):
        fill(output, format_, first, stop)
    output.finish(Summary(20, "11"))
    assert [path.name.partition(".")[0] for path in shard_paths(output.path, TABLE[format_])] == [
        "shard-000000",
        "shard-000001",
        "shard-000002",
    ]
    assert [sample["label"] for sample in output.read()] == [sample["label"] for sample in SAMPLES]
    assert json.loads((output.path / META).read_text())["count"] == 20
    output.close()


@every_format
@pytest.mark.parametrize("cut", [0, 3])
def test_going_on_in_the_middle_of_a_shard_and_between_two(tmp_path: Path, format_: str, cut: int) -> None:
    whole = Shards(tmp_path / "whole", TABLE[format_], Layout())
    other = Shards(tmp_path / "other", TABLE[format_], Layout())
    for output in (whole, other):
        output._folder.mkdir()
        output.begin(Schema.of(SAMPLES))
        fill(output, format_, 0, 7)
        if cut:
            put(output, format_, SAMPLES[7 : 7 + cut])
            output.checkpoint(note(7 + cut, cut))
    put(other, format_, SAMPLES[17:])  # which is lost
    other.close()
    again = Shards(tmp_path / "other", TABLE[format_], Layout())
    found = again.resume()
    assert found["count"] == 7 + cut
    assert again.is_open == bool(cut)
    for output in (whole, again):
        fill(output, format_, 7, 14, cut)
        output.finish(Summary(14, "11"))
        output.close()
    assert content(again.path) == content(whole.path)


def test_a_shard_left_just_before_its_process_was_killed(tmp_path: Path) -> None:
    """It has its name in the folder already; what is known of it is beside it."""
    output = Shards(tmp_path, TABLE["tar"], Layout())
    output.begin(Schema.of(SAMPLES))
    fill(output, "tar", 0, 7)
    output.close()
    again = Shards(tmp_path, TABLE["tar"], Layout())
    assert again.resume()["count"] == 7
    fill(again, "tar", 7, 9)
    again.close()
    assert [len(list(TABLE["tar"].module.read(path))) for path in shard_paths(again.path, TABLE["tar"])] == [7, 2]
    names = sorted(name for name in os.listdir(tmp_path) if name.endswith(".state"))
    assert names == ["shard-000001.tar.state"], "what is known of the first is not needed any more"


def test_keys_go_on_from_shard_to_shard(tmp_path: Path) -> None:
    import tarfile

    output = Shards(tmp_path, TABLE["tar"], Layout())
    output.begin(Schema.of(SAMPLES))
    fill(output, "tar", 0, 2)
    fill(output, "tar", 2, 4)
    output.close()
    keys: list[str] = []
    for path in shard_paths(output.path, TABLE["tar"]):
        with tarfile.open(path) as archive:
            keys += dict.fromkeys(name.partition(".")[0] for name in archive.getnames())
    assert keys == [f"{number:09d}" for number in range(4)]


@pytest.mark.parametrize("interrupted", [False, True])
def test_extensions_of_all_shards_are_known_in_the_end(tmp_path: Path, interrupted: bool) -> None:
    output = Shards(tmp_path, TABLE["tar"], Layout())
    output.begin(Schema.of([{"x": JPG}]))
    for number, data in enumerate((JPG, PNG, JPG)):
        put(output, "tar", [{"x": data}])
        output.checkpoint(note(number + 1, 1))
        if number == 1 and interrupted:
            output.close()
            output = Shards(tmp_path, TABLE["tar"], Layout())
            output.resume()
        output.leave(Summary(1, "00"))
    output.finish(Summary(3, "00"))
    output.close()
    assert json.loads((output.path / META).read_text())["fields"][0]["extension"] == "jpg;png"
    assert [sample["x"] for sample in output.read()] == [JPG, PNG, JPG]


def test_a_single_output(tmp_path: Path) -> None:
    output = Single(tmp_path, TABLE["npy"], Layout())
    assert output.resume() is None
    output.begin(Schema.of(SAMPLES))
    put(output, "npy", SAMPLES)
    output.checkpoint({"a": 1})
    output.finish(Summary(20, "00"))
    output.close()
    assert len(list(output.read())) == 20
    assert output.schema == Schema.of(SAMPLES)
