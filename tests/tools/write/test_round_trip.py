"""In every format, values read back equal through the printed line, or are rejected."""

from __future__ import annotations

import datetime
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import feedline
from feedline.errors import PackError
from feedline.tools.write.inspection import inspect
from tests.sampling import examples
from tests.tools.write.stores import FORMATS, SHARDED, SINGLE, canonical, without_workers

pack = partial(feedline.pack, workers=0)


def through_the_line(packed: feedline.Packed) -> list[Any]:
    """Open the dataset that the printed line opens, and read it."""
    expression = packed.line.removeprefix("loader = feedline.Loader(").partition(", batch_size=")[0]
    dataset = eval(expression, {"feedline": feedline})
    try:
        return [dataset[index] for index in range(len(dataset))]
    finally:
        dataset.close()


dtypes = st.sampled_from(["?", "u1", "i2", "i4", "i8", "u8", "f2", "f4", "f8", "c8", "M8[s]", "m8[ns]", "U3", "S2"])
shapes = st.sampled_from([(), (0,), (1,), (3,), (2, 0), (2, 3)])
arrays = st.builds(
    lambda dtype, shape: np.arange(6).astype("u1").astype(dtype)[: int(np.prod(shape))].reshape(shape), dtypes, shapes
)
texts = st.one_of(st.just(""), st.text(max_size=5), st.sampled_from(["caf\udce9", "\ud83d", "a\0", "\ufeffx", "a\r\n"]))
contents = st.one_of(
    st.binary(max_size=8),
    st.sampled_from([b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"GIF89a", b"BM", b"II*\0x", b"null", b"RIFF1234WEBP"]),
)
numbers = st.one_of(
    st.booleans(),
    st.integers(-(1 << 70), 1 << 70),
    st.sampled_from([1 << 63, (1 << 64) - 1, -(1 << 63), 10**5000]),
    st.floats(),
    st.complex_numbers(),
    st.sampled_from([np.uint8(255), np.float32(0.1), np.float16("nan"), np.longdouble(1) / 3, np.True_]),
)
times = st.sampled_from(
    [np.datetime64("2024-01-01"), np.datetime64("NaT", "ns"), np.timedelta64(3, "ms"), datetime.date(2024, 1, 1)]
)
plain = st.one_of(st.none(), texts, contents, numbers, times)
nested = st.one_of(st.lists(plain, max_size=3), st.dictionaries(st.text(max_size=3), plain, max_size=2))
columns = st.one_of(
    *(st.lists(kind, min_size=1, max_size=4) for kind in (texts, contents, numbers, times, arrays, nested)),
    *(
        st.lists(st.one_of(st.none(), kind), min_size=1, max_size=4)
        for kind in (texts, contents, numbers, arrays, nested)
    ),
    st.lists(st.one_of(plain, arrays, nested), min_size=1, max_size=4),
)


@pytest.mark.slow
@pytest.mark.parametrize("format_", FORMATS)
@settings(max_examples=examples(40), deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(values=columns, skips=st.booleans(), verify=st.booleans())
def test_packed_values_read_back_equal(format_: str, values: list[Any], skips: bool, verify: bool) -> None:
    samples = [{"x": value, "number": number} for number, value in enumerate(values)]
    with tempfile.TemporaryDirectory() as folder:
        try:
            packed = pack(
                samples,
                Path(folder) / SINGLE[format_],
                format=format_,
                on_error="skip" if skips else "raise",
                verify=verify,
            )
        except PackError as exc:
            if "read back" in str(exc):
                raise  # it should have been rejected before anything was written
            return
        found = through_the_line(packed)
    assert len(found) == packed.count == len(samples) - packed.skipped
    for sample in found:
        expected = values[int(sample["number"])]
        assert canonical(expected) == canonical(sample["x"])


SHAPES: dict[str, list[Any]] = {
    "plain": [{"x": number, "s": "a", "b": b"x", "v": np.zeros(3)} for number in range(5)],
    "tuples": [(np.arange(2), 3)] * 5,
    "alone": [np.arange(3)] * 5,
    "lengths": [{"ids": np.arange(number + 1), "fixed": np.zeros(2), "y": number} for number in range(5)],
    "lengths in tuples": [(number, np.arange(number + 1)) for number in range(5)],
    "lengths alone": [np.arange(number + 1) for number in range(5)],
    "pictures": [{"image": np.zeros((number + 1, 4, 3), np.uint8)} for number in range(5)],
    "axes": [{"image": np.zeros((4, 4, 3)[: 2 + number % 2], np.uint8)} for number in range(5)],
    "nested": [{"boxes": [[1, 2]] * number, "more": {"a": number}} for number in range(5)],
    "none": [{"x": None if number % 2 else number, "y": number} for number in range(5)],
    "lengths and none": [{"x": None if number % 2 else np.arange(number + 1)} for number in range(5)],
    "dates": [{"x": np.datetime64("2020-01-01", "s") + np.timedelta64(number, "s")} for number in range(5)],
}


STACK = ("plain", "tuples", "alone", "dates")


@pytest.mark.parametrize(
    ("format_", "out", "options", "name"),
    [
        *((format_, SINGLE[format_], {}, name) for format_ in ("lmdb", "tar") for name in SHAPES),
        *(
            (format_, SINGLE[format_], {}, name)
            for format_ in ("hdf5", "parquet", "npy")
            for name in (*STACK, "lengths", "none")
        ),
        *((format_, "it's a.b", {"samples_per_shard": 2}, "lengths") for format_ in SHARDED),
        ("lmdb", "bare", {}, "plain"),
    ],
)
def test_every_printed_line_delivers_all_samples(
    tmp_path: Path, format_: str, out: str, options: dict[str, Any], name: str
) -> None:
    try:
        packed = pack(SHAPES[name], tmp_path / out, format=format_, **options)
    except PackError:
        assert name not in STACK or (format_, name) in {("npy", "plain"), ("hdf5", "dates")}
        return
    for line in (packed.line, inspect(str(packed.path))["line"]):
        names: dict[str, Any] = {"feedline": feedline}
        exec(without_workers(line).replace("batch_size=32", "batch_size=1"), names)
        batches = list(names["loader"])
        names["loader"].dataset.close()
        assert len(batches) == 5, line
        assert ("collate_fn=list" in line) == (name not in STACK), line
        sample = SHAPES[name][0]
        assert name not in STACK or type(batches[0]) in (type(sample), list), line
        if isinstance(sample, dict):
            assert list(batches[0] if name in STACK else batches[0][0]) == list(sample), line
