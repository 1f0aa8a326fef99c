"""Parquet files in stores: S3 behind a proxy that misbehaves and counts requests, Google Cloud Storage, web servers."""

from __future__ import annotations

import io
import pickle
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import feedline
from feedline.datasets import ParquetDataset, Remote
from feedline.datasets.formats.parquet import blob_file
from feedline.datasets.formats.parquet.blob_file import BlobFile, parts_of
from feedline.datasets.framework.manifest import FACTS, UNFINISHED
from feedline.datasets.storage.blob import LocalBlob, RetryPolicy
from feedline.errors import BadOption, CorruptSource, SourceChanged, SourceError
from feedline.testing.asserting import assert_same
from tests.datasets.formats.parquet.tables import COUNT, samples, table, write
from tests.datasets.storage.servers import (
    StoreProxy,
    needs_s3,
    options_for,
    s3_bucket,
    store_proxy,
)

pytestmark = [needs_s3, pytest.mark.slow]

GROUP = 7
"""Rows per row group."""
SHARDS = 4
ROWS = SHARDS * COUNT


def numbers_table(shard: int) -> Any:
    """Return the content of a shard: its numbers, with a wide column between them that no test requests."""
    numbers = np.arange(shard * COUNT, (shard + 1) * COUNT)
    wide = [random.Random(int(number)).randbytes(5_000) for number in numbers]
    return pa.table({"x": numbers, "wide": wide, "text": [f"t{number}" for number in numbers]})


def parquet_bytes(rows: Any, group: int = GROUP) -> bytes:
    out = io.BytesIO()
    pq.write_table(rows, out, row_group_size=group)
    return out.getvalue()


def asked(proxy: StoreProxy) -> list[tuple[str, str]]:
    """Return the requests, except those that look for a manifest in a folder, or for an unfinished one."""
    return [one for one in proxy.asked if not any(name in unquote(one[1]) for name in (FACTS, UNFINISHED))]


@pytest.fixture(scope="module")
def s3() -> Iterator[Any]:
    with s3_bucket() as client:
        client.put_object(Bucket="bucket", Key="all.parquet", Body=parquet_bytes(table()))
        for shard in range(SHARDS):
            client.put_object(Bucket="bucket", Key=f"few/{9 + shard}.parquet", Body=parquet_bytes(numbers_table(shard)))
        for key in ("few/_hidden.parquet", "few/about.txt"):
            client.put_object(Bucket="bucket", Key=key, Body=b"no Parquet")
        yield client


@pytest.fixture
def proxy(s3: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[StoreProxy]:
    monkeypatch.setattr(RetryPolicy, "wait", lambda self, attempt: None)
    with store_proxy(s3.meta.endpoint_url) as proxy:
        yield proxy


# Any, throughout: options as the user gives them, and samples of any form.
def opened(proxy: StoreProxy, paths: Any = "s3://bucket/few/*.parquet", fields: Any = "x", **options: Any) -> Any:
    remote = {"storage_options": options_for(proxy), **options.pop("remote", {})}
    return ParquetDataset(paths, fields, remote=Remote(**remote), **options)


def numbers(batches: Any) -> list[int]:
    return [int(number) for batch in batches for number in batch]


# -- requests and samples ---


def test_samples_equal_those_of_a_local_file(proxy: StoreProxy) -> None:
    dataset = opened(proxy, "s3://bucket/all.parquet", None)
    assert_same(dataset[COUNT - 1], samples()[-1])  # before workers are forked
    loader = feedline.Loader(dataset, 8, workers=2, collate_fn=list)
    assert_same([sample for batch in loader for sample in batch], samples())
    dataset.close()


def test_which_files_an_address_selects(proxy: StoreProxy, tmp_path: Path) -> None:
    """They are sorted in natural order, like those of a local folder: 9 comes before 10."""
    local = write(tmp_path / "a.parquet", numbers_table(-1))
    paths = ["s3://bucket/few/12.parquet", local, "s3://bucket/f*/1*.parquet", "s3://bucket/few"]
    dataset = opened(proxy, paths)
    assert [int(x) for x in dataset.stream()] == [
        x for shard in (3, -1, 1, 2, 3, 0, 1, 2, 3) for x in range(shard * COUNT, (shard + 1) * COUNT)
    ]
    dataset.close()


def test_a_row_group_takes_one_request_for_the_wanted_columns(
    proxy: StoreProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = opened(proxy, "s3://bucket/few/", ("x", "text"))
    assert len(dataset) == ROWS
    assert [method for method, path in asked(proxy) if "list-type" not in path] == ["GET"] * SHARDS, (
        "only the footers are requested"
    )
    proxy.ranges.clear()
    assert dataset[0] == (0, "t0")
    ((_, whole),) = proxy.ranges
    assert whole > GROUP * 5_000, "small gaps between columns are fetched with them"
    monkeypatch.setattr(blob_file, "_GAP", 0)
    proxy.ranges.clear()
    assert dataset[GROUP] == (GROUP, f"t{GROUP}")
    assert len(proxy.ranges) == 2
    assert sum(size for _, size in proxy.ranges) < 1_000
    copy = pickle.loads(pickle.dumps(dataset))
    proxy.asked.clear()
    assert copy[ROWS - 1] == (ROWS - 1, f"t{ROWS - 1}")
    assert [method for method, _ in asked(proxy)] == ["GET"] * 3, "one footer and two columns are requested"
    dataset.close()
    copy.close()


def test_any_read_of_a_file_with_some_prefetched_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blob_file, "_PART", 100)
    monkeypatch.setattr(blob_file, "_GAP", 10)
    data, dice = random.Random(0).randbytes(3_000), random.Random(1)
    (tmp_path / "a").write_bytes(data)
    file = BlobFile(LocalBlob(str(tmp_path / "a")))
    file.fetch([(0, 250), (255, 400), (900, 901), (2_000, 9_000), (2_500, 2_400)])
    for _ in range(500):
        start, size = dice.randrange(3_200), dice.randrange(-1, 900)
        assert file.seek(start) == start == file.tell()
        assert bytes(file.read(size)) == (data[start : start + size] if size >= 0 else data[start:])
    assert file.seek(-5, 2) == 2_995
    assert parts_of([]) == parts_of([(7, 7)]) == []


# -- errors ---


@pytest.mark.parametrize(
    ("paths", "kind", "named"),
    [
        ("s3://bucket/none.parquet", SourceError, "s3://bucket/none.parquet"),
        ("s3://bucket/none", SourceError, "s3://bucket/none"),
        ("s3://bucket/spark.parquet", SourceError, "folder"),
        ("s3://bucket/[c]ut.parquet", CorruptSource, "s3://bucket/cut.parquet"),
        (Path("s3://bucket/a.parquet"), BadOption, "Pass addresses as strings"),
    ],
)
def test_error_messages(proxy: StoreProxy, s3: Any, paths: Any, kind: type[Exception], named: str) -> None:
    s3.put_object(Bucket="bucket", Key="spark.parquet/part-0.parquet", Body=parquet_bytes(numbers_table(0)))
    s3.put_object(Bucket="bucket", Key="cut.parquet", Body=parquet_bytes(numbers_table(0))[:-9])
    dataset = opened(proxy, paths)
    with pytest.raises(kind, match=named.replace("[", r"\[")):
        len(dataset)
    dataset.close()


def test_a_changed_object_never_mixes_versions(proxy: StoreProxy, s3: Any) -> None:
    s3.put_object(Bucket="bucket", Key="new/a.parquet", Body=parquet_bytes(numbers_table(0)))
    dataset = opened(proxy, "s3://bucket/new/*.parquet")
    assert dataset[0] == 0
    s3.put_object(Bucket="bucket", Key="new/a.parquet", Body=parquet_bytes(numbers_table(1)))
    batches, found = iter(feedline.Loader(dataset, GROUP)), list[Any]()
    with pytest.raises(SourceChanged, match=r"s3://bucket/new/a\.parquet"):
        found.extend(batches)
    assert numbers(found) == list(range(GROUP)), "samples read before the change"
    dataset.close()


# -- many objects ---
