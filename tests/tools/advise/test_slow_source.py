from __future__ import annotations

from dataclasses import replace

import pytest

from feedline.tools.advise.finding import Finding
from feedline.tools.advise.slow_samples import find
from feedline.tools.measure.measured import Measured, Reopened, SlowImages, SlowRows, Threads
from tests.tools.advise.measurements import measured, samples

PANDAS = SlowRows("pandas", "a.csv", 9.5e-4, "CSVDataset", "feedline.datasets.CSVDataset('a.csv')", row_s=1e-5)
CHUNKED = SlowRows(
    "h5py", "a.h5", 9e-4, "HDF5Dataset", "feedline.datasets.HDF5Dataset('a.h5')", row_s=1e-4, field="x",
    chunk=(500, 64), chunk_bytes=2 << 20, compression="gzip",
)  # fmt: skip
LARGE = SlowImages("Pillow", "/data/0.jpg", pixels=4e6, size=(200, 250), library_s=9e-4, image_s=1.5e-4)
REOPENED = Reopened("/data/a.npy", 200, 4 << 20, "npy", again_s=8e-4)
LOCKED = Threads({1: 1000.0, 2: 1000.0})


# Any field of samples of 1 ms each.
def found(**fields: object) -> list[Finding]:
    return find(_measured(**fields))


def _measured(**fields: object) -> Measured:
    return measured(samples=samples(**fields), threads=LOCKED, batch=None)


def test_our_source_is_recommended_with_the_measured_gain() -> None:
    (finding,) = found(rows=PANDAS)
    assert (finding.name, finding.code) == ("slow-source", PANDAS.code), "the interpreter's lock comes later"
    assert finding.gain == pytest.approx(1e-3 / (0.05e-3 + 1e-5), rel=0.01)
    assert "CSVDataset took 10 us for a row of a.csv" in finding.evidence
    (finding,) = found(rows=replace(PANDAS, unused=30))
    assert "row i is your sample i; there are 30 rows more than samples" in finding.evidence


def test_chunks_of_many_rows_are_named() -> None:
    (finding,) = found(rows=CHUNKED)
    assert (finding.code, finding.gain) == (CHUNKED.code, 5.0)
    assert "those of 'x' have the shape 500 x 64 (2.0 MiB, gzip)" in finding.evidence
    (finding,) = found(rows=replace(CHUNKED, row_s=0.9e-3))
    assert (finding.code, finding.gain) == ("feedline pack 'a.h5' OUT.h5", None), "no source helps with such chunks"


@pytest.mark.parametrize(
    "fields",
    [
        {"rows": replace(PANDAS, row_s=0.9e-3)},
        {"rows": replace(PANDAS, row_s=None)},
        {"rows": PANDAS, "seconds": (5e-5,) * 200},
        {"images": replace(LARGE, image_s=8e-4)},
        {"reopened": (replace(REOPENED, again_s=1e-6),)},
    ],
)
def test_what_gains_little_is_not_recommended(fields: dict[str, object]) -> None:
    assert not {"slow-source", "reopened-file"} & {finding.name for finding in found(**fields)}


def test_images_that_are_decoded_too_large_are_named_with_the_measured_gain() -> None:
    (finding,) = found(images=LARGE)
    assert (finding.name, finding.gain) == ("slow-source", 4.0)
    assert "80 times the pixels" in finding.problem
    assert "if your own code does, decode more" in finding.evidence
    (finding,) = found(images=replace(LARGE, kept=1 / 12))
    assert "keep as little as 8% of an image" in finding.evidence


def test_a_file_that_is_opened_again_is_named_unless_a_source_reads_it() -> None:
    (finding,) = found(reopened=(REOPENED,))
    assert (finding.name, finding.gain) == ("reopened-file", 5.0), "the interpreter's lock comes later"
    assert "each reads 4.0 MiB to deliver 1.0 MiB" not in finding.evidence, "it does not read far more than it delivers"
    (finding,) = found(reopened=(replace(REOPENED, read_bytes=40 << 20, again_s=3e-4),) * 3)
    assert "/data/a.npy and 2 other files, and each reads 40.0 MiB" in finding.evidence
    cheap = found(reopened=(replace(REOPENED, again_s=1e-4),))
    assert [finding.name for finding in cheap] == ["reopened-file", "serialised"]
    assert [finding.name for finding in found(reopened=(REOPENED,), rows=PANDAS)] == ["slow-source"]
