"""What is seen of datasets that read files, and which source of ours is timed on the same file."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from feedline.system.timing import Clock
from feedline.tools.measure.measured import Samples, SlowRows
from feedline.tools.measure.opened_files import OpenedFiles
from feedline.tools.measure.our_source import FileReads
from feedline.tools.measure.samples import Sampling, asking, some_indices
from tests.tools.advise import slow_files


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


# Any, throughout: datasets and their samples.
def reads_of(make: Callable[[], Any], count: int = 24) -> Samples:
    """Create a dataset, make some samples, and return what a probe finds out about what they read."""
    opened, clock = OpenedFiles(), Clock()
    dataset = make()
    ask, until_s = asking(dataset), time.monotonic() + 300
    sampling = Sampling(ask, iter(some_indices(dataset, len(dataset))[:count]), clock, 8, False, opened)
    samples = sampling.run(until_s)
    found = FileReads(dataset, ask, opened, clock).of(samples, sampling.made, sampling.kept[0], 8, until_s)
    if hasattr(dataset, "close"):
        dataset.close()
    return found


def rows_of(make: Callable[[], Any]) -> SlowRows:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("feedline.tools.measure.our_source._LEAST_SHARE", 0.0)  # a busy machine distorts shares
        rows = reads_of(make).rows
    assert rows is not None
    return rows


def test_the_file_that_samples_read_is_timed_with_the_source_that_reads_it() -> None:
    Path("few.csv").write_text("x\n1\n")
    rows = rows_of(slow_files.PandasRows)
    path = os.path.abspath("rows.csv")
    assert (rows.library, rows.source, rows.path, rows.unused) == ("pandas", "CSVDataset", path, 0)
    assert rows.code == f"dataset = feedline.datasets.CSVDataset({path!r})"
    assert rows.row_s is not None


def test_the_fields_and_chunks_of_an_hdf5_file_are_seen() -> None:
    rows, path = rows_of(slow_files.ChunkedInherited), os.path.abspath("rows.h5")
    assert (rows.library, rows.source, rows.path) == ("h5py", "HDF5Dataset", path)
    assert rows.chunks == f"those of 'x' have the shape {slow_files.CHUNK} x 1000 (195.3 KiB, gzip)"
    assert rows.code == f"dataset = feedline.datasets.HDF5Dataset({path!r}, fields=('x', 'labels/y'))"


class More(slow_files.CSVAgain):
    def __len__(self) -> int:
        return slow_files.COUNT + 1

    def __getitem__(self, index: int) -> Any:
        return super().__getitem__(index % slow_files.COUNT)


def test_no_source_is_named_that_has_fewer_rows() -> None:
    rows = rows_of(More)
    assert (rows.source, rows.row_s) == ("", None)


def test_samples_that_do_not_wait_for_rows_are_left_alone() -> None:
    assert reads_of(slow_files.Mapped).rows is None


# -- files that are opened again ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        (slow_files.Reopening, "np.load({}, mmap_mode='c')"),
        (slow_files.ReopeningLines, "feedline.share(file.readlines())"),
        (slow_files.ReopeningJSON, "feedline.share(json.load(file))"),
        (slow_files.ReopeningWhole, "file.read()"),
        (slow_files.ReopeningParts, "open({}, 'rb')\n"),
        (slow_files.ReopeningSQLite, "sqlite3.connect({})"),
    ],
)
def test_a_file_that_samples_open_again_is_kept_in_its_own_way(kind: type[Any], code: str) -> None:
    (file,) = reads_of(kind).reopened
    assert (Path(file.path).parent, file.samples) == (Path.cwd(), 23)
    assert code.format(repr(file.path)) in file.code
    assert file.again_s > 0


# -- images ------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_images_are_decoded_at_the_size_of_the_sample() -> None:
    images = reads_of(slow_files.Photos, 8).images
    assert images is not None
    assert (images.library, images.pixels, images.size) == ("Pillow", 1600 * 1200, (slow_files.SIDE, slow_files.SIDE))
    assert (Path(images.path).parent, images.kept) == (Path.cwd(), 1)
