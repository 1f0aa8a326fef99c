from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import feedline
import feedline.datasets
from feedline.packing.contents import look
from feedline.packing.line import dataset_text, fields_for, loader_line
from feedline.packing.schema import Schema
from tests.packing.stores import FORMATS, SHARDED, SINGLE

SCHEMA = Schema.of([{"image": b"\xff\xd8\xff", "label": 3, "x": np.zeros(2)}])


@pytest.mark.parametrize(
    ("format_", "form", "fields"),
    [
        ("lmdb", "dict", None),
        ("hdf5", "tuple", ("image", "label", "x")),
        ("parquet", "one", "image"),
        ("tar", "dict", {"image": "jpg", "label": "cls", "x": "x.npy"}),
        ("tar", "tuple", ("jpg", "cls", "x.npy")),
        ("tar", "one", "jpg"),
    ],
)
def test_fields(format_: str, form: str, fields: Any) -> None:
    assert fields_for(format_, SCHEMA, form) == fields


def test_quotes_in_paths() -> None:
    assert eval(dataset_text("hdf5", 'it\'s "mine".h5', Schema(()), "dict").removeprefix("HDF5Dataset")) == (
        'it\'s "mine".h5'
    )


def run(line: str) -> list[Any]:
    names: dict[str, Any] = {"feedline": feedline}
    exec(line.replace("shuffle=True, workers=4", "workers=0").replace("batch_size=32", "batch_size=1"), names)
    batches = list(names["loader"])
    names["loader"].dataset.close()
    return batches


@pytest.mark.parametrize("format_", FORMATS)
@pytest.mark.parametrize(
    "samples", [[{"b": 1.5, "a": "x"}] * 5, [(np.arange(2), 3)] * 5, [np.arange(3)] * 5], ids=["dict", "tuple", "one"]
)
def test_the_lines_of_pack_and_inspect_read_it(tmp_path: Path, format_: str, samples: list[Any]) -> None:
    outs: list[tuple[Path, dict[str, Any]]] = [(tmp_path / SINGLE[format_], {})]
    outs += [(tmp_path / "shards", {"samples_per_shard": 2})] if format_ in SHARDED else []
    outs += [(tmp_path / "a.b", {"samples_per_shard": 2})] if format_ in SHARDED else []
    outs += [(tmp_path / "bare", {})] if format_ == "lmdb" else []
    for out, options in outs:
        packed = feedline.pack(samples, out, format=format_, workers=0, **options)
        for line in (packed.line, look(out).line):
            batches = run(line)
            assert len(batches) == 5, line
            assert type(batches[0]) in (type(samples[0]), list), line
            if isinstance(samples[0], dict):
                assert list(batches[0]) == ["b", "a"], line


def test_the_line_is_python() -> None:
    compile(loader_line("tar", "a.tar", SCHEMA, "tuple"), "line", "exec")
