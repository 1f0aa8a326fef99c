from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import feedline
from feedline.errors import PackError
from feedline.tools.write.writers.contract import FORMATS as TABLE
from tests.tools.write.stores import SINGLE, DieAt, Mixed, Stream, canonical, content, counts_in, in_child, mixed, read

pack = partial(feedline.pack, workers=0)

# -- samples that raise -----------------------------------------------------------------------------------------------


class Broken(Mixed):
    def __getitem__(self, index: int) -> dict[str, Any]:
        if index in (3, 40, 41, 99):
            raise ValueError(f"sample number {index} is broken")
        return super().__getitem__(index)


@pytest.mark.parametrize("workers", [0, 2])
def test_samples_that_raise_are_reported_or_skipped(tmp_path: Path, workers: int) -> None:
    with pytest.raises(ValueError, match="sample number 3 is broken"):
        pack(Broken(), tmp_path / "a.lmdb", workers=workers)
    packed = pack(Broken(), tmp_path / "b.lmdb", workers=workers, on_error="skip")
    assert (packed.count, packed.skipped) == (96, 4)
    assert packed.reasons[0] == "sample 3: ValueError: sample number 3 is broken"
    assert canonical(read(packed)) == canonical([mixed(index) for index in range(100) if index not in (3, 40, 41, 99)])


@pytest.mark.parametrize(
    ("samples", "message"), [([{"x": object()}], "no format holds"), ([], "no samples"), (Stream(0), "no samples")]
)
def test_packing_fails_if_no_sample_can_be_packed(tmp_path: Path, samples: Any, message: str) -> None:
    with pytest.raises(PackError, match=message):
        pack(samples, tmp_path / "out.lmdb", on_error="skip")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("format_", "samples", "message"),
    [
        ("npy", [{"x": np.zeros(2)}, {"x": np.zeros(3)}], "different shapes.*Use lmdb or hdf5 or tar or parq"),
        ("npy", [{"x": b"a"}], "npy cannot hold bytes.*Use lmdb or hdf5 or tar"),
        ("hdf5", [{"x": np.zeros((2, 2))}, {"x": np.zeros((3, 3))}], "different shapes.*Use lmdb or tar"),
        ("tar", [{"x": b"a"}, {"x": None}], "tar cannot hold None.*Use lmdb or parquet"),
        ("tar", [{"Label": 1}], "tar cannot hold names with upper-case letters.*Use lmdb"),
        ("lmdb", [{"x": 1}, {"y": 1}], "Sample 1 does not fit: it has the fields 'y', but the first ones .* 'x'"),
        ("lmdb", [{"a/b": 1}], "cannot be part of a file name"),
    ],
)
def test_values_a_format_cannot_store_are_rejected(
    tmp_path: Path, format_: str, samples: list[Any], message: str
) -> None:
    with pytest.raises(PackError, match=message):
        pack(samples, tmp_path / SINGLE[format_], format=format_)
    assert not (tmp_path / SINGLE[format_]).exists()


# -- samples that do not fit ------------------------------------------------------------------------------------------


class Odd(Mixed):
    """Some samples differ from the others, in the first block and long after it."""

    def __init__(self, odd: dict[int, dict[str, Any]], count: int = 600) -> None:
        super().__init__(count)
        self.odd = odd

    def __getitem__(self, index: int) -> dict[str, Any]:
        sample = super().__getitem__(index)
        return self.odd.get(index, sample)

    @property
    def expected(self) -> list[dict[str, Any]]:
        return [mixed(index) for index in range(self.count) if index not in self.odd]


ODD = {
    3: {**mixed(3), "image": np.zeros((6, 5), np.uint8)},
    4: {**mixed(4), "extra": 1},
    5: {"image": mixed(5)["image"]},
    300: {**mixed(300), "vector": np.zeros(4)},
    301: {**mixed(301), "vector": np.zeros(5, np.float32)},
    302: {**mixed(302), "label": "seven"},
    599: {**mixed(599), "name": None},
}


@pytest.mark.parametrize(("format_", "options"), [("npy", {}), ("hdf5", {}), ("parquet", {"samples_per_shard": 150})])
def test_samples_that_do_not_fit_are_skipped(tmp_path: Path, format_: str, options: dict[str, Any]) -> None:
    dataset = Odd(ODD)
    out = tmp_path / ("out" if options else SINGLE[format_])
    packed = pack(dataset, out, format=format_, on_error="skip", **options)
    assert (packed.count, packed.skipped) == (593, 7)
    assert [reason.partition(":")[0] for reason in packed.reasons] == [f"sample {number}" for number in ODD]
    assert "(6, 5)" in packed.reasons[0]
    assert "'extra'" in packed.reasons[1]
    assert canonical(read(packed)) == canonical(dataset.expected)
    if options:
        counts = counts_in(packed)[:3]
        assert max(counts) <= options["samples_per_shard"]
        assert max(counts) - min(counts) <= 2, "shards are about equally large"


@pytest.mark.parametrize(
    ("format_", "good", "bad", "words"),
    [
        ("lmdb", 1, object(), "a object"),
        ("hdf5", np.zeros(2), np.zeros(3), "Declare that its shapes differ|shape (3,)"),
        ("hdf5", "a", "a\0b", "a NUL character"),
        ("parquet", "a", "\ud800", "surrogate"),
        ("lmdb", b"a", bytes(5000), "5,\\d+ bytes.*Use hdf5 or tar"),
        ("npy", "a", "a\0", "with a NUL character at the end"),
        ("tar", {"a": 1}, {"a": b"bytes"}, "JSON"),
    ],
)
def test_a_value_that_does_not_fit_is_named_or_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, format_: str, good: Any, bad: Any, words: str
) -> None:
    monkeypatch.setattr(TABLE[format_].writer, "most_bytes", 1000)  # the real limits, 2 and 4 GiB, are too large
    samples = [{"x": bad if number == 290 else good} for number in range(300)]
    with pytest.raises(PackError, match=rf"(?s)Sample 290 (does not fit|cannot be packed): its? .*({words})"):
        pack(samples, tmp_path / SINGLE[format_], format=format_)
    packed = pack(samples, tmp_path / SINGLE[format_], format=format_, on_error="skip", restart=True)
    assert (packed.count, packed.skipped) == (299, 1)
    assert packed.reasons[0].startswith("sample 290: it")


def test_skipped_samples_are_the_same_with_workers_and_after_an_interruption(tmp_path: Path) -> None:
    act = partial(pack, Odd(ODD), on_error="skip", format="hdf5", samples_per_shard=300)
    whole, out = act(tmp_path / "whole"), tmp_path / "out"
    assert not in_child(lambda: act(out, report=DieAt(400)))
    resumed = act(out, workers=2)
    assert resumed.resumed == counts_in(whole)[0], "one shard"
    assert content(out) == content(whole.path)
    assert (resumed.skipped, resumed.reasons) == (7, whole.reasons)
