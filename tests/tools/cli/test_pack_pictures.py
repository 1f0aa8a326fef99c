from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import webdataset
from PIL import Image

from feedline.tools.write.inspection import inspect
from tests.tools.cli.packing import run
from tests.tools.write.stores import read, without_workers


def test_pictures_are_resized_and_encoded(tmp_path: Path, pictures: Path) -> None:
    run(pictures, tmp_path / "a.lmdb", "--resize", "16", "--encode", "jpg", "--quality", "80")
    for sample in read(tmp_path / "a.lmdb"):
        with Image.open(io.BytesIO(sample["image"])) as image:
            assert image.format == "JPEG"
            assert min(image.size) == 16
    run(pictures, tmp_path / "out", "--format", "npy", "--resize", "24x20", "--encode", "raw")
    assert np.load(tmp_path / "out" / "image.npy").shape == (12, 20, 24, 3)
    run(pictures, tmp_path / "b.h5", "--resize", "16")
    kinds = {Image.open(io.BytesIO(sample["image"])).format for sample in read(tmp_path / "b.h5")}
    assert kinds == {"JPEG", "PNG"}, "without --encode, formats stay as they are"


def loaded(line: str) -> Any:
    """Return the loader that a printed line creates, without workers and shuffling."""
    names: dict[str, Any] = {}
    line = without_workers(line).replace("shuffle=True, ", "")
    exec(f"import feedline, feedline.datasets\n{line}", names)
    return names["loader"]


def last_line(capsys: pytest.CaptureFixture[str]) -> str:
    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    return [line for line in lines if line.startswith("loader = feedline.Loader(")][-1]


@pytest.mark.parametrize("options", [[], ["--samples-per-shard", "5"]])
@pytest.mark.filterwarnings(
    "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)  # webdataset's
def test_jpeg_and_png_in_tar_files(
    tmp_path: Path, pictures: Path, capsys: pytest.CaptureFixture[str], options: list[str]
) -> None:
    """Members have the extension of their format; the lines that pack and inspect print load all of them."""
    out = tmp_path / ("out" if options else "out.tar")
    run(pictures, out, "--format", "tar", *options)
    originals = [path.read_bytes() for path in sorted(pictures.rglob("*.*")) if path.suffix in (".jpg", ".png")]
    for line in (last_line(capsys), inspect(str(out))["line"]):
        loader = loaded(line)
        assert [data for batch in loader for data in batch["image"]] == originals
        loader.dataset.close()
    shards = sorted(map(str, out.glob("*.tar"))) if options else [str(out)]
    samples = list(webdataset.WebDataset(shards, shardshuffle=False).decode("rgb8"))
    kinds = [next(kind for kind in ("jpg", "png") if kind in sample) for sample in samples]
    assert kinds == ["jpg" if data.startswith(b"\xff\xd8") else "png" for data in originals]
    assert {sample[kind].shape[2] for sample, kind in zip(samples, kinds, strict=True)} == {3}
    run(out, tmp_path / "again.lmdb")
    assert read(tmp_path / "again.lmdb") == read(out)
