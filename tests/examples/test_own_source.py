"""The suites of `feedline.testing` pass for the sources that the documentation shows, as it prints them."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from tests import program_server

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "sources" / "own.md"
NAMES = ("zip_of_arrays.py", "test_zip_of_arrays.py", "json_rows.py")
"""The files that the blocks of the page are, in order."""
TEST_OF_THE_EXAMPLE = """
import numpy as np
import pytest
from own_source import MAGIC, RECORD, SeismicRecords, write_records

from feedline.testing import SourceContract


class TestSeismicRecords(SourceContract):
    stays_mapped = True

    @pytest.fixture(autouse=True)
    def _write(self, tmp_path):
        self.path = tmp_path / "records.bin"
        write_records(self.path, 30)

    def make_source(self):
        return SeismicRecords(self.path)

    def files(self):
        return [self.path]

    def samples(self):
        records = np.fromfile(self.path, RECORD, offset=len(MAGIC))
        return [
            {"signal": record["signal"].astype(np.float32) * record["scale"], "station": int(record["station"])}
            for record in records
        ]
"""
TEST_OF_THE_STREAM = r"""
import gzip
import json

import pytest
from json_rows import JSONRows

from feedline.testing import StreamContract


class TestJSONRows(StreamContract):
    @pytest.fixture(autouse=True)
    def _write(self, tmp_path):
        self.path = tmp_path / "rows.jsonl.gz"
        with gzip.open(self.path, "wt") as file:
            file.writelines(json.dumps(row) + "\n" for row in self.samples())

    def make_source(self):
        return JSONRows(self.path)

    def samples(self):
        return [{"number": number} for number in range(30)]
"""
PYTEST = """
import sys, pytest
sys.path.insert(0, ".")
sys.exit(pytest.main(["-c", "pytest.ini", "-p", "no:cacheprovider", "-q"]))
"""


def run_page(folder: Path) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    for name, block in zip(NAMES, blocks, strict=True):
        (folder / name).write_text(block, encoding="utf-8")
    shutil.copy(ROOT / "examples" / "own_source.py", folder)
    (folder / "test_own_source.py").write_text(TEST_OF_THE_EXAMPLE, encoding="utf-8")
    (folder / "test_json_rows.py").write_text(TEST_OF_THE_STREAM, encoding="utf-8")
    (folder / "pytest.ini").write_text("[pytest]\nfilterwarnings = error\n")
    done = program_server.run(PYTEST, cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
def test_sources_of_the_page_pass_their_suites(tmp_path: Path) -> None:
    run_page(tmp_path)
