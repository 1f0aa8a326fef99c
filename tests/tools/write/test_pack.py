from __future__ import annotations

import itertools
import os
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import feedline
from feedline.errors import PackError
from tests.sampling import examples
from tests.tools.write.stores import (
    FORMATS,
    SHARDED,
    SINGLE,
    Mixed,
    Stream,
    canonical,
    content,
    counts_in,
    in_child,
    mixed,
    read,
)

pack = partial(feedline.pack, workers=0)


@pytest.mark.parametrize("format_", FORMATS)
def test_packed_samples_are_read_back(tmp_path: Path, format_: str) -> None:
    packed = pack(Mixed(), tmp_path / SINGLE[format_], format=format_)
    assert packed.count == 100
    assert canonical(read(packed)) == canonical(list(map(mixed, range(100))))
    assert packed.size == sum(map(len, content(packed.path).values()))
    assert os.listdir(tmp_path) == [SINGLE[format_]], "nothing else is left"


@settings(max_examples=examples(15))
@given(
    sizes=st.lists(st.integers(0, 500), min_size=1, max_size=120), most=st.integers(1, 3000), by_samples=st.booleans()
)
def test_shards_are_balanced(sizes: list[int], most: int, by_samples: bool) -> None:
    limits: dict[str, Any] = {"samples_per_shard": most % 40 + 1} if by_samples else {"shard_bytes": most}
    with tempfile.TemporaryDirectory() as folder:
        samples = [{"x": bytes(size)} for size in sizes]
        counts = counts_in(pack(samples, Path(folder) / "out", format="tar", verify=False, **limits))
    assert sum(counts) == len(sizes)
    if by_samples:
        assert max(counts) <= limits["samples_per_shard"]
        assert max(counts) - min(counts) <= 1
        return
    ends = np.cumsum([0, *counts])
    sums = [sum(sizes[start:stop]) for start, stop in itertools.pairwise(ends.tolist())]
    # A shard may exceed the limit by its last sample, and by a remainder of less than half a shard.
    assert max(sums) <= 1.5 * most + 2 * max(sizes)


@pytest.mark.parametrize(
    ("format_", "options"),
    [
        ("hdf5", {"workers": 2}),
        *(
            pytest.param("hdf5", {"workers": 2, "start_method": method}, marks=pytest.mark.slow)
            for method in ("spawn", "forkserver")
        ),
        ("parquet", {"workers": 3, "engine": "thread"}),
    ],
)
def test_the_output_does_not_depend_on_workers(tmp_path: Path, format_: str, options: dict[str, Any]) -> None:
    """Nor on whether the dataset is map-style or iterable."""
    one = pack(Mixed(), tmp_path / f"one-{SINGLE[format_]}", format=format_)
    for number, source in enumerate((Mixed(), Stream())):
        other = feedline.pack(source, tmp_path / f"{number}-{SINGLE[format_]}", format=format_, **options)
        assert content(one.path) == content(other.path)


# -- where the output goes --------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("format_", FORMATS)
def test_a_full_disk_leaves_nothing_behind_or_complete_shards(tmp_path: Path, format_: str) -> None:
    """A limit on file sizes raises the same error as a full disk, without filling one."""
    out = tmp_path / SINGLE[format_]
    assert in_child(partial(_pack_in_little_room, out, format_))
    assert os.listdir(tmp_path) == []
    assert pack(Large(), out, format=format_).count == 400
    if format_ in SHARDED:
        out = tmp_path / "shards"
        assert in_child(partial(_pack_in_little_room, out, format_, samples_per_shard=100, grows=True))
        packed = pack(Large(grows=True), out, format=format_, samples_per_shard=100, source="large")
        assert (packed.count, packed.resumed) == (400, 100)


class Large(Mixed):
    def __init__(self, *, grows: bool = False) -> None:
        super().__init__(400)
        self.grows = grows

    def __getitem__(self, index: int) -> dict[str, Any]:
        rng = np.random.default_rng(index)
        return {"x": rng.standard_normal(300), "name": rng.bytes(20_000 if self.grows and index > 110 else 50).hex()}


def _pack_in_little_room(out: Path, format_: str, *, grows: bool = False, **options: Any) -> None:
    import resource

    resource.setrlimit(resource.RLIMIT_FSIZE, (600_000, 600_000))
    message = r"no space left.*run again to resume" if grows else r"no space left.*run again\.$"
    with pytest.raises(PackError, match=message):
        pack(Large(grows=grows), out, format=format_, source="large", **options)
