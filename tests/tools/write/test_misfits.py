from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import feedline
from feedline.errors import PackError
from feedline.tools.write.writers.contract import FORMATS as TABLE
from tests.tools.write.stores import (
    FORMATS,
    SINGLE,
    DieAt,
    Mixed,
    canonical,
    content,
    counts_in,
    in_child,
    mixed,
    read,
)

pytestmark = pytest.mark.sample(5)

pack = partial(feedline.pack, workers=0)

# -- samples that raise -----------------------------------------------------------------------------------------------


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
def test_samples_that_raise_are_reported_or_skipped(tmp_path: Path, kind: type[Mixed], workers: int) -> None:
    with pytest.raises(ValueError, match="sample number 3 is broken"):
        pack(kind(), tmp_path / "a.lmdb", workers=workers)
    packed = pack(kind(), tmp_path / "b.lmdb", workers=workers, on_error="skip")
    assert (packed.count, packed.skipped) == (96, 4)
    assert packed.reasons[0] == "sample 3: ValueError: sample number 3 is broken"
    assert canonical(read(packed)) == canonical([mixed(index) for index in range(100) if index not in (3, 40, 41, 99)])


def test_packing_fails_if_no_sample_can_be_packed(tmp_path: Path) -> None:
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


def test_a_sample_that_no_format_can_store_is_named(tmp_path: Path) -> None:
    samples: list[Any] = [{"x": 1}, {"x": object()}]
    with pytest.raises(PackError, match=r"Sample 1 cannot be packed: its field 'x' is a object: no format holds"):
        pack(samples, tmp_path / "out.lmdb")
    packed = pack(samples, tmp_path / "out.lmdb", on_error="skip", restart=True)
    assert (packed.count, packed.skipped) == (1, 1)


@pytest.mark.parametrize(
    ("format_", "samples", "message"),
    [
        (
            "npy",
            [{"x": np.zeros(2)}, {"x": np.zeros(3)}],
            "different shapes.*Use lmdb or hdf5 or tar or parq",
        ),
        ("npy", [{"x": b"a"}], "npy cannot hold bytes.*Use lmdb or hdf5 or tar"),
        ("npy", [{"x": None}, {"x": 1}], "cannot hold None.*Use lmdb or parquet"),
        ("npy", [{"x": {"a": 1}}], "Use lmdb or tar"),
        ("npy", [{"x": "a\0"}], "with a NUL character at the end"),
        ("hdf5", [{"x": np.zeros((2, 2))}, {"x": np.zeros((3, 3))}], "different shapes.*Use lmdb or tar"),
        ("hdf5", [{"x": None}], "cannot hold None"),
        ("hdf5", [{"x": np.array(["a"])}], "cannot hold values of type str.*Use lmdb or tar or npy"),
        ("parquet", [{"x": 1 + 2j}], "cannot hold values of type complex128.*Use lmdb or hdf5"),
        ("parquet", [{"x": [1, "a"]}], "Use lmdb or tar"),
        ("parquet", [{"x": np.zeros((2, 0))}], "cannot hold empty arrays"),
        ("tar", [{"x": b"a"}, {"x": None}], "tar cannot hold None.*Use lmdb or parquet"),
        ("tar", [{"Label": 1}], "tar cannot hold names with upper-case letters.*Use lmdb"),
        ("tar", [{"x": [b"bytes"]}], "JSON cannot represent"),
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


def test_a_late_sample_of_another_shape_is_named(tmp_path: Path) -> None:
    samples = [{"x": np.zeros(2)}] * 400 + [{"x": np.zeros(3)}]
    with pytest.raises(
        PackError, match=r"Sample 400 does not fit: its field 'x' is a float64 array of shape \(3,\).*--ragged x"
    ):
        pack(samples, tmp_path / "out.h5")
    packed = pack(samples, tmp_path / "out.h5", ragged=["x"], restart=True)
    assert read(packed)[-1]["x"].shape == (3,)


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


@pytest.mark.slow
@pytest.mark.parametrize(
    ("format_", "options"),
    [
        ("npy", {}),
        *((format_, {}) for format_ in ("hdf5", "parquet")),
        *((format_, {"samples_per_shard": count}) for format_ in ("hdf5", "parquet") for count in (37, 150)),
    ],
)
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


def test_skipped_samples_are_the_same_with_workers_and_after_an_interruption(tmp_path: Path) -> None:
    act = partial(pack, on_error="skip", format="hdf5", samples_per_shard=300)
    whole = act(Odd(ODD), tmp_path / "whole")
    with_workers = act(Odd(ODD), tmp_path / "two", workers=2)
    out = tmp_path / "out"
    assert not in_child(lambda: act(Odd(ODD), out, report=DieAt(400)))
    resumed = act(Odd(ODD), out)
    assert resumed.resumed == counts_in(whole)[0], "one shard"
    assert content(out) == content(whole.path) == content(with_workers.path)
    assert resumed.reasons == whole.reasons
    assert resumed.skipped == 7


@pytest.mark.parametrize("format_", FORMATS)
def test_fields_in_another_order_fit(tmp_path: Path, format_: str) -> None:
    samples = [{"a": 1, "b": "x"}, {"b": "y", "a": 2}]
    packed = pack(samples, tmp_path / SINGLE[format_], format=format_)
    assert [list(sample.items()) for sample in read(packed)] == [[("a", 1), ("b", "x")], [("a", 2), ("b", "y")]]


@pytest.mark.parametrize(
    ("format_", "good", "bad", "words"),
    [
        ("hdf5", "a", "a\0b", "a NUL character"),
        ("hdf5", "a", "\ud800", "surrogate"),
        ("parquet", "a", "\ud800", "surrogate"),
        ("npy", "a", "a\0", "with a NUL character at the end"),
        ("tar", {"a": 1}, {"a": b"bytes"}, "JSON"),
    ],
)
def test_values_the_format_cannot_store_are_skipped(
    tmp_path: Path, format_: str, good: Any, bad: Any, words: str
) -> None:
    samples = [{"x": bad if number in (2, 290) else good} for number in range(300)]
    with pytest.raises(PackError, match=rf"Sample 2 does not fit: its field 'x'.*{words}.*on-error skip"):
        pack(samples, tmp_path / SINGLE[format_], format=format_)
    packed = pack(samples, tmp_path / SINGLE[format_], format=format_, on_error="skip")
    assert (packed.count, packed.skipped) == (298, 2)
    assert words in packed.reasons[1]


@pytest.mark.parametrize(("format_", "advice"), [("lmdb", "hdf5 or tar"), ("parquet", "lmdb, hdf5 or tar")])
def test_values_that_are_too_large_are_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, format_: str, advice: str
) -> None:
    """The real limits, 2 and 4 GiB, are too large for a test."""
    monkeypatch.setattr(TABLE[format_].writer, "most_bytes", 1000)
    samples = [{"x": bytes(5000 if number == 7 else 10)} for number in range(20)]
    with pytest.raises(PackError, match=rf"Sample 7 does not fit: .*5,\d\d\d bytes.*Use {advice}"):
        pack(samples, tmp_path / SINGLE[format_])
    assert pack(samples, tmp_path / SINGLE[format_], on_error="skip").count == 19


def test_the_list_of_reasons_is_limited(tmp_path: Path) -> None:
    samples: list[Any] = [{"x": 1}] * 300 + [{"x": "long " * 1000}] * 100
    packed = pack(samples, tmp_path / "out.h5", on_error="skip")
    assert (packed.skipped, len(packed.reasons)) == (100, 20)
    assert max(map(len, packed.reasons)) <= 400


class Named:
    """A dataset that knows the file of each sample; one sample is larger."""

    def __init__(self, larger: int) -> None:
        self.larger = larger

    def __len__(self) -> int:
        return 300

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"x": np.zeros(3 if index == self.larger else 2)}

    def path_of(self, index: int) -> str:
        return f"photos/{index}.jpg"


class Listed(Named):
    """Lists its files as `torchvision.datasets.ImageFolder` does."""

    path_of: Any = None

    def __init__(self, larger: int) -> None:
        super().__init__(larger)
        self.samples = [(f"photos/{index}.jpg", 0) for index in range(300)]


def test_messages_name_the_files_of_samples(tmp_path: Path) -> None:
    with pytest.raises(PackError, match=r"Sample 290 \(photos/290.jpg\) does not fit"):
        pack(Listed(290), tmp_path / "a.h5")
    with pytest.raises(PackError, match=r"Sample 280 \(photos/280.jpg\) does not fit"):
        pack(Named(280), tmp_path / "a.h5")
    with pytest.raises(
        PackError, match=r"\(2,\) in sample 0 \(photos/0.jpg\), and .*\(3,\) in sample 7 \(photos/7.jpg\)\. Use .* skip"
    ):
        pack(Named(7), tmp_path / "b", format="npy")
    packed = pack(Named(7), tmp_path / "b", format="npy", on_error="skip")
    assert packed.reasons[0].startswith("sample 7 (photos/7.jpg): its field 'x' is")
