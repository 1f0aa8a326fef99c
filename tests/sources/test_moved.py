"""States of streams and the location of their data: for every kind of file, a state fits moved files but no others."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from feedline import Loader
from feedline.datasets import CSVDataset, JSONLines, ParquetDataset, TarDataset, TFRecordDataset
from feedline.errors import BadState
from feedline.text import TokenDataset, TokenWriter
from tests.datasets.formats.tfrecord.records import example, file_of

COUNT, FILES = 60, 4
PARTS = [range(start, COUNT, FILES) for start in range(FILES)]
Made = Callable[[Path], Any]  # Any: a stream of any kind


def write_tar(folder: Path) -> None:
    for number, part in enumerate(PARTS):
        with tarfile.open(folder / f"{number}.tar", "w") as archive:
            for index in part:
                member = tarfile.TarInfo(f"{index:03d}.cls")
                member.size = len(str(index))
                archive.addfile(member, io.BytesIO(str(index).encode()))


def write_lines(folder: Path) -> None:
    for number, part in enumerate(PARTS):
        (folder / f"{number}.jsonl").write_text("".join(json.dumps({"id": index}) + "\n" for index in part))


def write_parquet(folder: Path) -> None:
    for number, part in enumerate(PARTS):
        pq.write_table(pa.table({"id": list(part)}), folder / f"{number}.parquet", row_group_size=5)


def write_csv(folder: Path) -> None:
    for number, part in enumerate(PARTS):
        (folder / f"{number}.csv").write_text("id\n" + "".join(f"{index}\n" for index in part))


def write_records(folder: Path) -> None:
    for number, part in enumerate(PARTS):
        (folder / f"{number}.tfrecord").write_bytes(file_of([example({"id": str(index).encode()}) for index in part]))


def write_tokens(folder: Path) -> None:
    for number, part in enumerate(PARTS):
        with TokenWriter(folder / f"{number}.bin", dtype="uint16", tokenizer="", end_token=None) as writer:
            writer.write([[index, index + 1] for index in part])


SHUFFLED: dict[str, Any] = {"shuffle": True, "seed": 5}
KINDS: dict[str, tuple[Callable[[Path], None], Made]] = {
    "tar": (write_tar, lambda folder: TarDataset(f"{folder}/*.tar", "cls").stream(buffer=8, **SHUFFLED)),
    "lines": (write_lines, lambda folder: JSONLines(f"{folder}/*.jsonl", cache=False).stream()),
    "shuffled lines": (write_lines, lambda folder: JSONLines(f"{folder}/*.jsonl", cache=False).stream(**SHUFFLED)),
    "parquet": (write_parquet, lambda folder: ParquetDataset(f"{folder}/*.parquet").stream(**SHUFFLED)),
    "csv": (write_csv, lambda folder: CSVDataset(f"{folder}/*.csv", cache=False).stream(**SHUFFLED)),
    "records": (write_records, lambda folder: TFRecordDataset(f"{folder}/*.tfrecord").stream(buffer=8, **SHUFFLED)),
    "tokens": (write_tokens, lambda folder: TokenDataset(f"{folder}/*.bin", 2, labels=None).stream(**SHUFFLED)),
}


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, Made]:
    """Return files of each kind in a folder, and what reads them."""
    write, made = KINDS[request.param]
    folder = tmp_path / "here"
    folder.mkdir()
    write(folder)
    return folder, made


def texts(batches: Any) -> list[str]:
    return [repr(batch) for batch in batches]


def test_streams_resume_over_moved_files(kind: tuple[Path, Made], tmp_path: Path) -> None:
    folder, made = kind
    with Loader(made(folder), 4) as loader:
        batches = iter(loader)
        list(islice(batches, 5))
        state = json.loads(json.dumps(loader.state_dict()))
        rest = texts(batches)
    moved = folder.rename(tmp_path / "elsewhere")
    with Loader(made(moved), 4) as loader:
        loader.load_state_dict(state)
        assert texts(loader) == rest
    assert len(rest) >= 10


def test_states_of_other_files_are_rejected(kind: tuple[Path, Made]) -> None:
    folder, made = kind
    batches = iter(made(folder))
    next(batches)
    state = batches.state_dict()
    first, *_ = sorted(folder.iterdir())
    renamed = first.rename(first.with_stem("0-other"))
    with pytest.raises(BadState, match="other names"):
        iter(made(folder)).load_state_dict(state)
    renamed.unlink()
    with pytest.raises(BadState, match="4 files"):
        iter(made(folder)).load_state_dict(state)


def test_a_state_fits_the_same_files_in_a_bucket() -> None:
    names = ["a.tar", "b.tar"]
    here = iter(TarDataset([f"/data/{name}" for name in names]).stream()).state_dict()
    for place in ("s3://bucket/train/", "gs://other/", "https://host/x/"):
        iter(TarDataset([f"{place}{name}" for name in names]).stream()).load_state_dict(here)
        with pytest.raises(BadState, match="other names"):
            iter(TarDataset([f"{place}{name}" for name in reversed(names)]).stream()).load_state_dict(here)
