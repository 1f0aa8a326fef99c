"""Tests that every writer has to pass."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from feedline.tools.write.schema import Schema
from feedline.tools.write.writers.contract import FORMATS as TABLE
from feedline.tools.write.writers.contract import Summary
from tests.tools.write.stores import FORMATS, canonical, content, mixed
from tests.tools.write.writers.outputs import put, samples_in, writer_of, written

pytestmark = pytest.mark.sample(5)

every_format = pytest.mark.parametrize("format_", FORMATS)
SAMPLES = [mixed(number) for number in range(40)]


@every_format
def test_written_samples_are_read_back(tmp_path: Path, format_: str) -> None:
    path = written(format_, tmp_path, SAMPLES)
    assert canonical(samples_in(format_, path)) == canonical(SAMPLES)
    assert os.listdir(tmp_path) == [path.name], "temporary files are deleted"
    assert TABLE[format_].module.stored(path)["count"] == 40


@every_format
def test_an_output_of_one_sample(tmp_path: Path, format_: str) -> None:
    assert len(samples_in(format_, written(format_, tmp_path, SAMPLES[:1]))) == 1


@every_format
def test_equal_samples_give_equal_bytes(tmp_path: Path, format_: str) -> None:
    one, other = (written(format_, tmp_path / name, SAMPLES) for name in ("a", "b"))
    assert content(one) == content(other)


@every_format
def test_close_may_be_called_early_and_twice(tmp_path: Path, format_: str) -> None:
    writer = writer_of(format_, tmp_path, Schema.of(SAMPLES))
    put(writer, SAMPLES[:5])
    writer.close()
    writer.close()


@every_format
@pytest.mark.parametrize("name", ["näme ☃", "a.b", "a b", "x" * 80, "%s", "select", "con", "0", "-x", "a:b", "path"])
def test_odd_names_of_fields(tmp_path: Path, format_: str, name: str) -> None:
    samples: list[dict[str, Any]] = [{name: number, "x": "ä"} for number in range(3)]
    assert samples_in(format_, written(format_, tmp_path, samples)) == samples


def test_the_summary_survives_json() -> None:
    schema = Schema.of([{"x": np.zeros(2)}])
    metadata = Summary(3, "tuple", 1, {"classes": ["a"]}).as_json(schema)
    assert (metadata["feedline"], metadata["count"], metadata["form"], metadata["skipped"]) == (1, 3, "tuple", 1)
    assert Schema.from_json(metadata["fields"]) == schema
