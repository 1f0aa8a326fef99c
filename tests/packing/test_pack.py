from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch  # it keeps files open from its import on, which a test would seem to leave behind

import feedline
from feedline.errors import BadOption, PackError, SourceError
from feedline.packing import Packed, Stage
from feedline.packing.digest import START, chained, digest_of
from feedline.packing.formats import FORMATS as WRITERS
from feedline.packing.output import read_file, shard_paths
from tests.packing.stores import FORMATS, SHARDED, SINGLE, Mixed, Stream, content, in_child, mixed

pack = partial(feedline.pack, workers=0)


def read(packed: Packed) -> list[dict[str, Any]]:
    format_ = WRITERS[packed.format]
    paths = shard_paths(packed.path, format_) if packed.path.is_dir() and packed.format != "npy" else [packed.path]
    return [sample for path in paths for sample in read_file(format_, path)]


def digest(samples: Iterator[dict[str, Any]] | list[dict[str, Any]]) -> str:
    return chained(START, [digest_of(sample) for sample in samples])


@pytest.mark.parametrize("format_", FORMATS)
def test_what_was_packed_is_read_back(tmp_path: Path, format_: str) -> None:
    packed = pack(Mixed(), tmp_path / SINGLE[format_], format=format_)
    assert packed.count == 100
    assert packed.digest == digest(list(map(mixed, range(100))))
    assert digest(read(packed)) == packed.digest
    assert packed.size == sum(map(len, content(packed.path).values()))
    assert os.listdir(tmp_path) == [SINGLE[format_]], "nothing else is left"


@pytest.mark.parametrize("format_", SHARDED)
@pytest.mark.parametrize("limit", [{"samples_per_shard": 33}, {"shard_bytes": 2000}, {}])
def test_shards(tmp_path: Path, format_: str, limit: dict[str, Any]) -> None:
    packed = pack(Mixed(), tmp_path / "out", format=format_, **limit)
    assert digest(read(packed)) == packed.digest == digest(list(map(mixed, range(100))))
    shards = shard_paths(packed.path, WRITERS[format_])
    if "samples_per_shard" in limit:
        counts = [len(list(read_file(WRITERS[format_], shard))) for shard in shards]
        assert counts == [33, 33, 33, 1]
    assert (len(shards) > 1) == bool(limit)
    meta = json.loads((packed.path / "feedline.json").read_text())
    assert (meta["count"], meta["digest"]) == (100, packed.digest)


@pytest.mark.parametrize(
    "format_", ["hdf5", *(pytest.param(one, marks=pytest.mark.slow) for one in FORMATS if one != "hdf5")]
)
@pytest.mark.parametrize("options", [{"workers": 2}, {"workers": 3, "engine": "thread"}])
def test_workers_change_nothing(tmp_path: Path, format_: str, options: dict[str, Any]) -> None:
    one = pack(Mixed(), tmp_path / f"one-{SINGLE[format_]}", format=format_)
    other = feedline.pack(Mixed(), tmp_path / f"two-{SINGLE[format_]}", format=format_, **options)
    assert content(one.path) == content(other.path)


@pytest.mark.slow
@pytest.mark.parametrize("start_method", ["spawn", "forkserver"])
def test_start_methods_change_nothing(tmp_path: Path, start_method: str) -> None:
    one = pack(Mixed(), tmp_path / "one.h5")
    other = feedline.pack(Mixed(), tmp_path / "two.h5", workers=2, start_method=start_method)
    assert content(one.path) == content(other.path)


def test_an_iterable_dataset(tmp_path: Path) -> None:
    one = pack(Mixed(), tmp_path / "one.lmdb")
    other = feedline.pack(Stream(), tmp_path / "two.lmdb", workers=2)
    assert content(one.path) == content(other.path)


# -- interruption -----------------------------------------------------------------------------------------------------

CASES: list[Any] = [
    *(pytest.param(format_, {}, id=format_) for format_ in FORMATS),
    *(pytest.param(format_, {"samples_per_shard": 37}, id=f"{format_}-shards") for format_ in SHARDED),
]


QUICK = ("lmdb", "hdf5-shards", "tar")
FEW = [case if case.id in QUICK else pytest.param(*case.values, id=case.id, marks=pytest.mark.slow) for case in CASES]


def place_of(folder: Path, format_: str, options: dict[str, Any]) -> Path:
    return folder / ("out" if options else SINGLE[format_])


def crash_everywhere(folder: Path, format_: str, options: dict[str, Any], points: Iterator[int]) -> int:
    """Kill a run at each of these points, let another go on, compare; return how many came before the end."""
    act = partial(pack, format=format_, checkpoint_every=32, **options)
    whole = act(Mixed(), place_of(folder, format_, options))
    expected = content(whole.path)
    tried = 0
    for point in points:
        base = folder / f"at-{point}"
        base.mkdir()
        out = place_of(base, format_, options)
        ended = in_child(lambda out=out: act(Mixed(), out), kill_at=point)  # type: ignore[misc]
        if ended:
            break
        tried += 1
        if out.exists():
            assert content(out) == expected, "what has the name of the output is whole"
        packed = act(Mixed(), out, overwrite=True)
        assert content(out) == expected, f"killed at {point}"
        assert packed.digest == whole.digest
        assert os.listdir(base) == [out.name]
    return tried


@pytest.mark.parametrize(("format_", "options"), FEW)
def test_a_run_killed_at_some_point_is_gone_on_with(tmp_path: Path, format_: str, options: dict[str, Any]) -> None:
    assert crash_everywhere(tmp_path, format_, options, iter((7, 20))) >= 1


@pytest.mark.slow
@pytest.mark.parametrize(("format_", "options"), CASES)
def test_a_run_killed_at_any_point_is_gone_on_with(tmp_path: Path, format_: str, options: dict[str, Any]) -> None:
    assert crash_everywhere(tmp_path, format_, options, iter(range(1, 10_000))) > 10


@pytest.mark.parametrize(("format_", "options"), FEW)
def test_a_run_killed_again_and_again_comes_to_its_end(tmp_path: Path, format_: str, options: dict[str, Any]) -> None:
    act = partial(pack, format=format_, checkpoint_every=16, **options)
    whole = act(Mixed(), place_of(tmp_path, format_, options))
    again = tmp_path / "again"
    again.mkdir()
    out = place_of(again, format_, options)
    kills = 0
    while not in_child(lambda: act(Mixed(), out, overwrite=True), kill_at=40 + 20 * kills):
        kills += 1
        assert kills < 100, "it does not get on"
    assert content(out) == content(whole.path)


PROGRAM = """
import os, signal, sys
import feedline
from tests.packing.stores import Mixed

def report(stage):
    sys.stdout.write(f"{stage.name} {stage.done}\\n")
    sys.stdout.flush()
    if stage.name == "packing" and stage.done >= 60 and "--die" in sys.argv:
        os.kill(os.getpid(), signal.SIGKILL)

packed = feedline.pack(Mixed(), sys.argv[1], workers=2, checkpoint_every=16, report=report)
sys.stdout.write(f"resumed {packed.resumed}\\n")
"""


@pytest.mark.parametrize("format_", ["hdf5", pytest.param("lmdb", marks=pytest.mark.slow)])
def test_kill_minus_nine_with_workers(tmp_path: Path, format_: str) -> None:
    out = tmp_path / SINGLE[format_]
    command = [sys.executable, "-c", PROGRAM, str(out)]
    root = Path(__file__).resolve().parents[2]
    died = subprocess.run([*command, "--die"], cwd=root, capture_output=True, text=True, timeout=60, check=False)
    assert died.returncode == -9, died.stderr
    assert not out.exists()
    assert (tmp_path / f"{out.name}.packing").is_dir()
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    resumed = int(done.stdout.rpartition("resumed ")[2])
    assert 16 <= resumed < 100, "it went on, and did not begin again"
    whole = pack(Mixed(), tmp_path / f"whole-{out.name}", checkpoint_every=16)
    assert content(out) == content(whole.path)


def test_what_is_random_is_the_same_after_an_interruption(tmp_path: Path) -> None:
    act = partial(pack, checkpoint_every=16)
    whole = act(Noise(), tmp_path / "whole.lmdb")
    out = tmp_path / "out.lmdb"
    assert not in_child(lambda: act(Noise(), out, report=DieAt(40)))
    assert act(Noise(), out, workers=2).digest == whole.digest


class Noise:
    def __len__(self) -> int:
        return 100

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"x": feedline.rng().random(3), "y": np.random.random(2), "z": random.random()}


class DieAt:
    """Kills its process when so many samples were packed."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __call__(self, stage: Stage) -> None:
        if stage.name == "packing" and stage.done >= self.count:
            os.kill(os.getpid(), 9)


def test_an_iterable_dataset_is_gone_on_with(tmp_path: Path) -> None:
    act = partial(pack, checkpoint_every=16)
    whole = act(Stream(), tmp_path / "whole.lmdb")
    out = tmp_path / "out.lmdb"
    assert not in_child(lambda: act(Stream(), out, report=DieAt(40)))
    resumed = act(Stream(), out)
    assert resumed.resumed >= 16
    assert content(out) == content(whole.path)


def test_other_options_do_not_go_on_with_it(tmp_path: Path) -> None:
    out = tmp_path / "out.tar"
    assert not in_child(lambda: pack(Mixed(), out, checkpoint_every=16, report=DieAt(40)))
    with pytest.raises(BadOption, match=r"samples=100, but now it is 99.*--restart"):
        pack(Mixed(99), out, checkpoint_every=16)
    with pytest.raises(BadOption, match="source="):
        pack(Mixed(), out, checkpoint_every=16, source="another")
    packed = pack(Mixed(99), out, checkpoint_every=16, restart=True)
    assert (packed.count, packed.resumed) == (99, 0)


def test_two_runs_at_once(tmp_path: Path) -> None:
    out = tmp_path / "out.lmdb"

    def second(stage: Stage) -> None:
        with pytest.raises(BadOption, match="Another process is packing"):
            pack(Mixed(), out)

    pack(Mixed(20), out, report=second)


def test_an_exception_in_between_is_gone_on_from(tmp_path: Path) -> None:
    out = tmp_path / "out.h5"

    def stop(stage: Stage) -> None:
        if stage.done >= 50:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pack(Mixed(), out, checkpoint_every=16, report=stop)
    assert not out.exists()
    packed = pack(Mixed(), out, checkpoint_every=16)
    assert packed.resumed == 64
    assert content(out) == content(pack(Mixed(), tmp_path / "whole.h5", checkpoint_every=16).path)


# -- the check at the end ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("format_", FORMATS)
def test_a_flipped_bit_is_noticed(tmp_path: Path, format_: str) -> None:
    out = tmp_path / SINGLE[format_]

    def flip(stage: Stage) -> None:
        if (stage.name, stage.done) != ("checking", 0):
            return
        (built,) = (
            path
            for path in (tmp_path / f"{out.name}.packing").iterdir()
            if path.stem == "output" and not path.name.endswith(".state")
        )
        path = built / "vector.npy" if built.is_dir() else built
        data = bytearray(path.read_bytes())
        searched = mixed(7)["vector"].tobytes()
        assert searched in data
        for place in range(len(data)):
            if data.startswith(searched, place):  # LMDB has old pages, too, which nobody reads
                data[place + 11] ^= 1
        path.write_bytes(data)

    # Uncompressed: so that the bytes are found, and only the digest can know.
    options: dict[str, Any] = {"compression": "none"} if format_ == "parquet" else {}
    with pytest.raises(PackError, match="not what was written"):
        pack(Mixed(), out, format=format_, report=flip, **options)
    assert not out.exists()
    packed = pack(Mixed(), out, format=format_, restart=True, **options)
    assert digest(read(packed)) == packed.digest


def test_a_missing_sample_is_noticed(tmp_path: Path) -> None:
    def cut(stage: Stage) -> None:
        if (stage.name, stage.done) == ("checking", 0):
            path = tmp_path / "out.tar.packing" / "output.tar"
            os.truncate(path, path.stat().st_size - 5 * 1024)

    with pytest.raises(PackError, match="not what was written"):
        pack(Mixed(), tmp_path / "out.tar", report=cut)


# -- samples that fail ------------------------------------------------------------------------------------------------


class Broken(Mixed):
    def __getitem__(self, index: int) -> dict[str, Any]:
        if index in (3, 40, 41, 99):
            raise ValueError(f"sample number {index} is broken")
        return super().__getitem__(index)


class BrokenTogether(Broken):
    def __getitems__(self, indices: list[int]) -> list[dict[str, Any]]:
        return [self[index] for index in indices]


@pytest.mark.parametrize("kind", [Broken, BrokenTogether])
@pytest.mark.parametrize("workers", [0, 2])
def test_samples_that_fail(tmp_path: Path, kind: type[Mixed], workers: int) -> None:
    with pytest.raises(ValueError, match="sample number 3 is broken"):
        pack(kind(), tmp_path / "a.lmdb", workers=workers)
    packed = pack(kind(), tmp_path / "b.lmdb", workers=workers, on_error="skip")
    assert (packed.count, packed.skipped) == (96, 4)
    assert packed.reasons[0] == "sample 3: ValueError: sample number 3 is broken"
    assert packed.digest == digest([mixed(index) for index in range(100) if index not in (3, 40, 41, 99)])


def test_skipped_samples_are_counted_over_an_interruption(tmp_path: Path) -> None:
    act = partial(pack, on_error="skip", checkpoint_every=16)
    out = tmp_path / "out.lmdb"
    assert not in_child(lambda: act(Broken(), out, report=DieAt(60)))
    packed = act(Broken(), out)
    assert (packed.count, packed.skipped, len(packed.reasons)) == (96, 4, 4)
    assert content(out) == content(act(Broken(), tmp_path / "whole.lmdb").path)


def test_nothing_but_failures(tmp_path: Path) -> None:
    with pytest.raises(PackError, match=r"No sample could be packed.*KeyError"):
        pack(Fails(), tmp_path / "out.lmdb", on_error="skip")
    with pytest.raises(PackError, match="no samples"):
        pack([], tmp_path / "out.lmdb")
    with pytest.raises(PackError, match=r"no format holds.*[^.]\.$"):
        pack([{"x": object()}], tmp_path / "out.lmdb", on_error="skip")


class Fails:
    def __len__(self) -> int:
        return 30

    def __getitem__(self, index: int) -> Any:
        raise KeyError(index)


def test_a_sample_that_no_format_holds_is_named(tmp_path: Path) -> None:
    samples: list[Any] = [{"x": 1}, {"x": object()}]
    with pytest.raises(PackError, match=r"Sample 1 cannot be packed: its field 'x' is a object, which no format holds"):
        pack(samples, tmp_path / "out.lmdb")
    packed = pack(samples, tmp_path / "out.lmdb", on_error="skip", restart=True)
    assert (packed.count, packed.skipped) == (1, 1)


@pytest.mark.parametrize(
    ("format_", "samples", "message"),
    [
        ("npy", [{"x": np.zeros(2)}, {"x": np.zeros(3)}], "npy cannot hold the field 'x'.*one shape"),
        ("npy", [{"x": b"a"}], "zeros off the end of bytes"),
        ("npy", [{"x": None}, {"x": 1}], "has no None"),
        ("npy", [{"x": {"a": 1}}], "use lmdb or tar"),
        ("npy", [{"x": "a\0"}], "ends with a zero"),
        ("hdf5", [{"x": np.zeros((2, 2))}, {"x": np.zeros((3, 3))}], "only arrays of one axis"),
        ("hdf5", [{"x": None}], "has no None"),
        ("hdf5", [{"x": np.array(["a"])}], "holds arrays of numbers"),
        ("parquet", [{"x": 1 + 2j}], "Arrow has no such numbers"),
        ("parquet", [{"x": [1, "a"]}], "Use lmdb or tar"),
        ("parquet", [{"x": np.zeros((2, 0))}], "without elements"),
        ("tar", [{"x": b"a"}, {"x": None}], "a member is there or not"),
        ("tar", [{"Label": 1}], "lower case"),
        ("tar", [{"x": [b"bytes"]}], "becomes JSON"),
        ("lmdb", [{"x": 1}, {"y": 1}], "Sample 1 has the fields 'y', but the first has the fields 'x'"),
        ("lmdb", [{"a/b": 1}], "no name that can be part of a file"),
    ],
)
def test_what_a_format_cannot_hold(tmp_path: Path, format_: str, samples: list[Any], message: str) -> None:
    with pytest.raises(PackError, match=message):
        pack(samples, tmp_path / SINGLE[format_], format=format_)
    assert not (tmp_path / SINGLE[format_]).exists()


def test_a_late_sample_of_another_shape_is_named(tmp_path: Path) -> None:
    samples = [{"x": np.zeros(2)}] * 400 + [{"x": np.zeros(3)}]
    with pytest.raises(PackError, match=r"Field 'x' of sample 400 is a float64 array of shape \(3,\).*--ragged x"):
        pack(samples, tmp_path / "out.h5")
    packed = pack(samples, tmp_path / "out.h5", ragged=["x"], restart=True)
    assert read(packed)[-1]["x"].shape == (3,)


def test_a_late_number_of_another_kind_is_named(tmp_path: Path) -> None:
    with pytest.raises(PackError, match=r"sample 300 is the float 0.5, which int64 numbers cannot hold"):
        pack([{"x": 1}] * 300 + [{"x": 0.5}], tmp_path / "out.h5")


# -- odd values -------------------------------------------------------------------------------------------------------

ODD: dict[str, list[Any]] = {
    "strings": ["", "a", "ß☃", "a\nb", "x" * 5000],
    "half of a surrogate pair": ["a", "\ud800"],
    "zeros in strings": ["a\0b"],
    "zero dimensions": [np.array(7), np.array(-1)],
    "big endian": [np.arange(3, dtype=">i4"), np.arange(3, 6, dtype=">i4")],
    "one big-endian number": [np.array(3, ">f8"), np.array(4, ">f8")],
    "floats": [0.5, float("nan"), float("inf"), -0.0],
    "booleans": [True, False],
    "large integers": [2**63, 2**64 - 1],
    "half": [np.float16(1.5), np.float16(-2)],
    "empty arrays": [np.zeros((0, 3), np.float32)] * 2,
    "fortran order": [np.asfortranarray(np.arange(6).reshape(2, 3))] * 2,
    "ragged": [np.arange(3), np.arange(0), np.arange(5)],
    "bytes": [b"", b"\0", b"abc\0\0", bytes(range(256))],
    "none": [None, 1, None],
    "none in strings": ["a", None],
    "nested": [{"a": [1, "x", None]}, {"a": []}],
    "integers and floats": [1, 0.5],
    "complex": [1 + 2j, 0j],
    "times": [np.datetime64("2024-01-01"), np.datetime64("NaT", "D")],
    "bytearray": [bytearray(b"abc"), memoryview(b"xyz")],
    "small integers": [np.uint8(3), np.uint8(255)],
}
REFUSED = {
    "npy": {"ragged", "bytes", "none", "none in strings", "nested", "bytearray"},
    "hdf5": {
        "half of a surrogate pair",
        "zeros in strings",
        "empty arrays",
        "none",
        "none in strings",
        "nested",
        "times",
    },
    "parquet": {"half of a surrogate pair", "nested", "empty arrays", "complex", "times"},
    "tar": set(),
    "lmdb": set(),
}


@pytest.mark.parametrize("format_", FORMATS)
@pytest.mark.parametrize("name", ODD)
def test_odd_values_come_back_or_are_refused(tmp_path: Path, format_: str, name: str) -> None:
    samples = [{"x": value, "y": number} for number, value in enumerate(ODD[name])]
    out = tmp_path / SINGLE[format_]
    if name in REFUSED[format_]:
        with pytest.raises(PackError):
            pack(samples, out, format=format_)
        return
    packed = pack(samples, out, format=format_)  # which compares every value
    assert packed.count == len(samples)
    for found, expected in zip(read(packed), ODD[name], strict=True):
        if isinstance(expected, np.ndarray) and expected.ndim:
            assert np.array_equal(found["x"], expected)
            assert found["x"].dtype == expected.dtype.newbyteorder("=")


@pytest.mark.parametrize(
    ("samples", "form", "names"),
    [
        ([(1, "a"), (2, "b")], "tuple", ("0", "1")),
        ([np.arange(3), np.arange(3)], "one", ("value",)),
        ([{"a": 1}], "dict", ("a",)),
    ],
)
def test_the_form_of_samples_is_kept(tmp_path: Path, samples: list[Any], form: str, names: tuple[str, ...]) -> None:
    packed = pack(samples, tmp_path / "out.h5")
    meta = WRITERS["hdf5"].module.stored(packed.path)
    assert meta["form"] == form
    assert tuple(field["name"] for field in meta["fields"]) == names
    assert ("fields=" in packed.line) == (form != "dict")


def test_fields_are_chosen_and_named(tmp_path: Path) -> None:
    packed = pack(Mixed(), tmp_path / "a.lmdb", fields=["label", "name"])
    assert read(packed)[1] == {"label": 1, "name": mixed(1)["name"]}
    packed = pack([(1, 2)], tmp_path / "b.lmdb", fields=["x", "y"])
    assert read(packed) == [{"x": 1, "y": 2}]
    with pytest.raises(PackError, match="no field 'nothing'"):
        pack(Mixed(), tmp_path / "c.lmdb", fields=["nothing"])
    with pytest.raises(PackError, match="2 values, but fields= names 1"):
        pack([(1, 2)], tmp_path / "d.lmdb", fields=["x"])


def test_arrays_and_tensors(tmp_path: Path) -> None:
    packed = pack({"x": torch.arange(6).reshape(3, 2), "y": np.arange(3)}, tmp_path / "a.h5")
    assert read(packed)[2]["x"].tolist() == [4, 5]


# -- where the output goes --------------------------------------------------------------------------------------------


def test_what_exists_is_not_replaced_unless_asked(tmp_path: Path) -> None:
    out = tmp_path / "out.lmdb"
    out.write_text("precious")
    with pytest.raises(BadOption, match="exists already"):
        pack(Mixed(), out)
    assert out.read_text() == "precious"
    assert pack(Mixed(), out, overwrite=True).count == 100


def test_the_old_output_stays_until_the_new_one_is_whole(tmp_path: Path) -> None:
    out = tmp_path / "out"
    old = content(pack(Mixed(10), out, format="npy").path)

    def look(stage: Stage) -> None:
        assert content(out) == old

    pack(Mixed(), out, format="npy", overwrite=True, report=look)
    assert content(out) != old


def test_a_folder_of_someone_else_is_never_replaced(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.txt").write_text("precious")
    with pytest.raises(BadOption, match="did not write"):
        pack(Mixed(), tmp_path / "out", format="npy", overwrite=True)
    assert (tmp_path / "out" / "thesis.txt").read_text() == "precious"


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("out", {}, "does not say by its suffix"),
        ("out.xyz", {}, "does not say by its suffix"),
        ("out.h5", {"format": "zarr"}, "none of lmdb"),
        ("out.h5", {"samples_per_shard": 10}, "Shards are files in a folder"),
        ("out", {"format": "lmdb", "samples_per_shard": 10}, "lmdb has no shards"),
        ("out.h5", {"compression": "zip"}, "one of gzip, lzf"),
        ("out.lmdb", {"compression": "gzip"}, "none"),
        ("out.h5", {"quality": 0}, "between 1 and 100"),
        ("out.h5", {"resize": -1}, "no number of pixels"),
        ("out.h5", {"encode": "bmp"}, "none of 'keep'"),
        ("out.h5", {"on_error": "retry"}, "neither"),
        ("out.h5", {"fields": "label"}, "not a list of names"),
        ("out.h5", {"fields": ["a", "a"]}, "twice"),
        ("out.h5", {"fields": []}, "no field"),
        ("out.h5", {"encode": "jpg"}, "no field of the first sample is one"),
        ("out.h5", {"checkpoint_every": 0}, "at least 1"),
        ("nowhere/out.h5", {}, "no folder"),
    ],
)
def test_options_that_cannot_work(tmp_path: Path, name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(BadOption, match=message):
        pack([{"x": 1.5}], tmp_path / name, **options)


@pytest.mark.parametrize("compression", ["gzip", "lzf"])
def test_compression_of_hdf5(tmp_path: Path, compression: str) -> None:
    data = {"x": np.zeros((2000, 100))}
    plain = pack(data, tmp_path / "plain.h5")
    small = pack(data, tmp_path / "small.h5", compression=compression)
    assert small.digest == plain.digest
    assert small.size < plain.size / 5


def test_the_disk_is_full(tmp_path: Path) -> None:
    """The limit on the size of files raises what a full disk does, and no disk has to be filled for it."""
    for format_ in FORMATS:
        out = tmp_path / SINGLE[format_]
        assert in_child(partial(_pack_in_little_room, out, format_))
        assert not out.exists()
        assert pack(Large(), out, format=format_, checkpoint_every=64).count == 400


class Large(Mixed):
    def __init__(self) -> None:
        super().__init__(400)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"x": np.random.default_rng(index).standard_normal(300), "name": "x" * 50}


def _pack_in_little_room(out: Path, format_: str) -> None:
    import resource

    resource.setrlimit(resource.RLIMIT_FSIZE, (600_000, 600_000))
    with pytest.raises(PackError, match=r"no room left.*run again to go on"):
        pack(Large(), out, format=format_, checkpoint_every=64)


# -- what it is that is packed ----------------------------------------------------------------------------------------


class Numbers:
    def __init__(self, factor: int, fails_at: int | None = None) -> None:
        self.factor = factor
        self._fails_at = fails_at

    def __len__(self) -> int:
        return 100

    def __getitem__(self, index: int) -> dict[str, Any]:
        if index == self._fails_at:
            raise ValueError(index)
        return {"x": self.factor * 1000 + index}


def test_another_dataset_does_not_go_on_with_it(tmp_path: Path) -> None:
    out = tmp_path / "out.lmdb"
    for source in (None, "the first"):
        with pytest.raises(ValueError, match="80"):
            pack(Numbers(1, 80), out, checkpoint_every=16, source=source, restart=True)
        with pytest.raises(BadOption, match=r"left by a run with (another dataset|source='the first').*--restart"):
            pack(Numbers(2), out, checkpoint_every=16)
    packed = pack(Numbers(1), out, checkpoint_every=16, source="the first")  # its name is all that has to be the same
    assert packed.resumed == 80
    assert [sample["x"] for sample in read(packed)] == list(range(1000, 1100))


@pytest.mark.parametrize("first", [0, 40])
def test_a_run_that_stored_nothing_leaves_nothing(tmp_path: Path, first: int) -> None:
    out = tmp_path / "out.lmdb"
    with pytest.raises(ValueError, match=str(first)):
        pack(Numbers(1, first), out)
    assert os.listdir(tmp_path) == []
    assert pack(Numbers(2), out, fields=["x"]).count == 100


def test_what_was_stored_outlives_a_run_that_fails_at_once(tmp_path: Path) -> None:
    out = tmp_path / "out.lmdb"
    for done in (50, 0):  # the second one goes on, and fails before it stores anything

        def stop(stage: Stage, done: int = done) -> None:
            if stage.done >= done:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            pack(Numbers(1), out, checkpoint_every=16, report=stop)
    assert pack(Numbers(1), out, checkpoint_every=16).resumed == 64


def test_a_killed_run_that_stored_nothing_is_no_hindrance(tmp_path: Path) -> None:
    out = tmp_path / "out.lmdb"
    assert not in_child(lambda: pack(Mixed(), out, report=DieAt(0)))
    assert os.path.exists(f"{out}.packing")
    assert pack(Mixed(99), out).count == 99


@pytest.mark.parametrize("kind", [str, Path])
def test_a_path_is_opened_as_the_command_does(tmp_path: Path, kind: Any) -> None:
    for name in ("a", "b"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        (tmp_path / "photos" / name / "1.jpg").write_bytes(b"picture " + name.encode())
    packed = pack(kind(tmp_path / "photos"), tmp_path / "out.lmdb")
    assert [(sample["image"], sample["label"]) for sample in read(packed)] == [(b"picture a", 0), (b"picture b", 1)]
    again = pack(kind(packed.path), tmp_path / "out.tar")
    assert again.digest == packed.digest
    with pytest.raises(SourceError, match=r"There is nothing at .*none"):
        pack(kind(tmp_path / "none"), tmp_path / "none.lmdb")
    with pytest.raises(BadOption, match=r"lies in .*photos"):
        pack(kind(tmp_path / "photos"), tmp_path / "photos" / "out.lmdb")


def test_bytes_are_no_dataset(tmp_path: Path) -> None:
    with pytest.raises(BadOption, match="b'photos' is no dataset"):
        pack(b"photos", tmp_path / "out.lmdb")
