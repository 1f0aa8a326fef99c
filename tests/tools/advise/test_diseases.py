"""The doctor names the cure of real datasets with known diseases.

What a probe sees of them does not depend on the machine's speed; what it recommends is tested with recorded times, and
with its own times in slow tests.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from feedline.datasets import CSVDataset, HDF5Dataset
from feedline.loader.loader import Loader
from feedline.system.timing import Clock
from feedline.tools.advise.diagnosis import diagnose
from feedline.tools.advise.finding import Finding
from feedline.tools.measure.measured import Measured, Rows, State
from feedline.tools.measure.probe import probe
from feedline.tools.measure.row_reading import rows_of
from feedline.tools.measure.samples import asking
from feedline.tools.measure.state import handles_before
from tests.tools.advise import diseases
from tests.tools.advise.measurements import measured, samples
from tests.tries import try_again

PROBE_S = 8.0


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def probed(name: str) -> Measured:
    return probe(f"{diseases.__name__}:{name}", seconds=PROBE_S)


def rows_read_by(dataset: diseases.Rows, *tables: str) -> Rows:
    """Return what a probe finds out about the rows of a dataset that has opened these tables."""
    rows = rows_of(dataset, asking(dataset), list(range(len(dataset))), 32, tables, Clock())
    assert rows is not None
    return rows


def found(setup: Measured) -> dict[str, Finding]:
    return {finding.name: finding for finding in diagnose(setup)}


# -- what a probe sees -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [diseases.PandasRows, diseases.PandasReads])
def test_the_file_that_pandas_has_read_is_opened_with_our_source(kind: type[diseases.Rows]) -> None:
    path = os.path.abspath("rows.csv")
    Path("few.csv").write_text("x\n1\n")
    rows = rows_read_by(kind(), os.path.abspath("few.csv"), path)
    assert (rows.library, rows.source, rows.path) == ("pandas", "CSVDataset", path)
    assert rows.code == f"dataset = feedline.datasets.CSVDataset({path!r})"
    assert rows.row_s is not None


def test_a_frame_that_is_no_file_becomes_arrays() -> None:
    rows = rows_read_by(diseases.PandasMemory())
    assert (rows.library, rows.source, rows.path) == ("pandas", "ArrayDataset", "")


class Half(diseases.PandasRows):
    """Every other row of the file."""

    def __init__(self) -> None:
        super().__init__()
        self.frame = self.frame.iloc[1::2]

    def __len__(self) -> int:
        return len(self.frame)


def test_a_frame_of_some_rows_of_a_file_does_not_become_the_whole_file() -> None:
    dataset, path = Half(), os.path.abspath("rows.csv")
    rows = rows_read_by(dataset, path)
    assert (rows.source, rows.path, rows.unused) == ("ArrayDataset", "", 0)


def test_rows_that_are_no_samples_are_mentioned() -> None:
    (finding,) = diagnose(with_rows(replace(PANDAS, unused=30)))
    assert "row i is your sample i: there are 30 rows more than samples" in finding.evidence


@pytest.mark.parametrize("kind", [diseases.ChunkedRows, diseases.ChunkedAgain, diseases.ChunkedInherited])
def test_a_chunked_file_is_opened_with_our_source(kind: type[diseases.ChunkedRows]) -> None:
    """Whether it is open before the first sample, from then on, or for each sample."""
    dataset = kind()
    rows = rows_read_by(dataset)
    path = os.path.abspath("rows.h5")
    assert (rows.library, rows.source, rows.path) == ("h5py", "HDF5Dataset", path)
    assert (rows.chunk_rows, rows.chunk_bytes, rows.compression) == (30, 30 * 5000 * 4, "gzip")
    assert rows.code == f"dataset = feedline.datasets.HDF5Dataset({path!r}, fields=('x', 'labels/y'))"
    dataset.close()


def test_an_open_hdf5_file_is_opened_later_from_its_own_path() -> None:
    dataset = diseases.ChunkedInherited()
    (finding,) = diagnose(measured(state=State(handles=handles_before(dataset))))
    assert finding.code is not None
    assert f"self.file = h5py.File({os.path.abspath('rows.h5')!r}, 'r')" in finding.code
    assert "self.path" not in finding.code
    dataset.close()


# -- what follows from it ----------------------------------------------------------------------------------------------

PANDAS = Rows("pandas", 0.95, "CSVDataset", "dataset = feedline.datasets.CSVDataset('a.csv')", "a.csv", row_s=1e-5)
CHUNKED = Rows(
    "h5py", 0.9, "HDF5Dataset", "dataset = feedline.datasets.HDF5Dataset('a.h5')", "a.h5", row_s=1e-4, chunk_rows=500,
    chunk_bytes=2 << 20, compression="gzip",
)  # fmt: skip


def with_rows(rows: Rows) -> Measured:
    """Samples of 1 ms each."""
    return measured(samples=samples(rows=rows))


def test_our_source_is_recommended_with_the_measured_gain() -> None:
    (finding,) = diagnose(with_rows(PANDAS))
    assert (finding.name, finding.code) == ("slow-rows", PANDAS.code)
    assert finding.gain == pytest.approx(1e-3 / (0.05e-3 + 1e-5), rel=0.15)
    assert "CSVDataset took 10 us for a row of a.csv" in finding.evidence
    (finding,) = diagnose(with_rows(CHUNKED))
    assert (finding.name, finding.code) == ("slow-rows", CHUNKED.code)
    assert finding.gain == pytest.approx(5.0, rel=0.05)
    assert "A sample unpacks a whole chunk for its row: 500 rows, 2.0 MiB, gzip." in finding.evidence


def test_our_source_is_not_recommended_unless_it_was_faster() -> None:
    slow = {"row_s": 0.9e-3}
    assert diagnose(with_rows(Rows(**{**vars(PANDAS), **slow}))) == []
    assert diagnose(with_rows(Rows(**{**vars(PANDAS), "row_s": None}))) == []
    assert diagnose(with_rows(Rows(**{**vars(PANDAS), "share": 0.4}))) == [], "the rest of the sample takes longer"
    (finding,) = diagnose(with_rows(Rows(**{**vars(CHUNKED), **slow})))
    assert (finding.code, finding.gain) == ("feedline pack 'a.h5' OUT.lmdb", None), "no source helps with such chunks"


# -- both, with real times ---------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "finding", "cure"),
    [
        ("PandasRows", "slow-rows", "CSVDataset"),
        ("PandasMemory", "slow-rows", "ArrayDataset"),
        ("PandasReads", "slow-rows", "CSVDataset"),
        ("ChunkedRows", "slow-rows", "HDF5Dataset"),
        ("ChunkedAgain", "slow-rows", "HDF5Dataset"),
        ("OwnLock", "serialised", 'engine="process"'),
        ("ModuleLock", "serialised", 'engine="process"'),
        ("lock_on_threads", "serialised", 'engine="process"'),
    ],
)
def test_the_cure_is_named(name: str, finding: str, cure: str) -> None:
    def check() -> None:
        findings = found(probed(name))
        assert cure in str(findings[finding].code)
        assert not {"waiting", "reopened-file"} & set(findings), "one disease, one finding"
        if finding == "serialised":
            assert findings[finding].gain is None

    try_again(check)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["PandasLabels", "FreeLock"])
def test_no_cure_is_named_for_what_takes_no_time(name: str) -> None:
    assert not {"slow-rows", "serialised"} & set(found(probed(name)))


def test_the_recommended_sources_make_the_same_samples() -> None:
    rows, chunked = diseases.PandasRows(), diseases.ChunkedRows()
    with Loader(
        CSVDataset("rows.csv", fields=([f"x{column}" for column in range(diseases.COLUMNS)], "label")), 4
    ) as batches:
        values, labels = next(iter(batches))
        # pandas does not read every digit of a number exactly: that depends on its version.
        assert np.allclose(values, [rows[index][0] for index in range(4)], rtol=1e-6)
        assert labels.tolist() == [0, 1, 2, 3]
    with Loader(HDF5Dataset("rows.h5", fields=("x", "labels/y")), 4) as batches:
        values, labels = next(iter(batches))
        assert (values == [chunked[index][0] for index in range(4)]).all()
        assert labels.tolist() == [0, 1, 2, 3]
    chunked.close()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["Crops", "ResizedCrops"])
def test_the_size_for_images_leaves_room_for_crops(name: str) -> None:
    """A crop keeps 200 x 150 of 800 x 600 pixels: of an image stored with 64 x 48, 16 x 12 would be left."""
    samples = probed(name).samples
    assert samples is not None
    assert samples.decoded is not None
    assert samples.decoded.kept == 1 / 16
    assert samples.decoded.used_pixels == 64 * 48 * 16
