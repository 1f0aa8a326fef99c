from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from feedline.datasets.framework.manifest import FACTS
from tests.tools.write.stores import pack_as, read


def test_numpy_reads_the_output(tmp_path: Path) -> None:
    samples = [{"x": np.full((2, 3), number, np.int16), "n": number, "s": "ä" * number} for number in range(5)]
    path = pack_as("npy", tmp_path, samples).path
    assert np.load(path / "x.npy").shape == (5, 2, 3)
    assert np.load(path / "n.npy").tolist() == list(range(5))
    assert np.load(path / "s.npy").dtype == np.dtype("<U4")
    assert sorted(file.name for file in path.iterdir()) == [FACTS, "n.npy", "s.npy", "x.npy"]


@pytest.mark.parametrize("texts", [["", ""], ["\ud800", "a\0b"], ["☃" * 5000, "x"]])
def test_strings_are_read_back(tmp_path: Path, texts: list[str]) -> None:
    packed = pack_as("npy", tmp_path, [{"s": text} for text in texts])
    assert [str(sample["s"]) for sample in read(packed)] == texts
