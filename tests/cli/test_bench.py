from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from feedline.cli import bench
from feedline.cli.pictures import PictureDataset, write_pictures


def test_quick_set_covers_inline_transport_and_images(tmp_path: Path) -> None:
    write_pictures(tmp_path, 4)
    cases = bench.quick_cases(PictureDataset(tmp_path, range(4)))
    assert len({case.label for case in cases}) == len(cases)
    assert {case.worker_count for case in cases} == {0, bench.WORKER_COUNT}
    for case in cases:
        image, label = case.dataset[len(case.dataset) - 1]
        assert image.dtype == torch.float32
        assert isinstance(label, int)


def test_gigabytes_are_those_of_a_batch(tmp_path: Path) -> None:
    write_pictures(tmp_path, 4)
    (case,) = (case for case in bench.quick_cases(PictureDataset(tmp_path, range(4))) if case.unit == "GB")
    sample, _ = case.dataset[0]
    assert case.unit_per_batch * 1e9 == sample.nbytes * case.batch_size


@pytest.mark.slow
def test_json_lines_are_all_that_goes_to_standard_output(capsys: pytest.CaptureFixture[str]) -> None:
    bench.run(rounds=1, seconds=0.05, as_json=True)
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["case"] for row in rows] == ["tiny", "tiny", "38 MB", "JPEG"]
    assert all(row["ratio"] > 0 for row in rows)
