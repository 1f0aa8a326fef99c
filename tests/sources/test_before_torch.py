"""The drop-in loader recognises sources that were created before torch was imported."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

STREAMS = {
    "tar": 'feedline.datasets.TarDataset("a.tar", fields="txt").stream()',
    "parquet": 'feedline.datasets.ParquetDataset("a.parquet", fields="x").stream()',
    "sql": 'feedline.datasets.SQLDataset("sqlite:///a.db", "SELECT x FROM numbers", key="x").stream()',
    "feed": "feedline.datasets.StreamDataset(Numbers(), idle_s=0)",
    "mixture": 'feedline.datasets.mix([feedline.datasets.TarDataset("a.tar", fields="txt").stream()])',
}
PROGRAM = """
import io, json, sqlite3, sys, tarfile
import pyarrow, pyarrow.parquet
import feedline, feedline.datasets
with tarfile.open("a.tar", "w") as tar:
    for number in range(6):
        member = tarfile.TarInfo(f"{number}.txt")
        member.size = 1
        tar.addfile(member, io.BytesIO(b"x"))
pyarrow.parquet.write_table(pyarrow.table({"x": range(6)}), "a.parquet")
connection = sqlite3.connect("a.db")
connection.execute("CREATE TABLE numbers (x INTEGER)")
connection.executemany("INSERT INTO numbers VALUES (?)", [(number,) for number in range(6)])
connection.commit()
connection.close()
class Numbers(feedline.datasets.Feed):
    def subscribe(self, number, count): self.waiting = list(range(6))
    def receive(self, most, wait_s):
        taken, self.waiting = self.waiting[:most], self.waiting[most:]
        return [feedline.datasets.Message(number, number) for number in taken]
    def acknowledge(self, receipts): pass
    def close(self): pass
streams = STREAMS
assert "torch" not in sys.modules
print(json.dumps({name: sum(1 for _ in feedline.DataLoader(stream, 2)) for name, stream in streams.items()}))
"""


@pytest.mark.slow
def test_streams_created_before_torch_was_imported(tmp_path: Path) -> None:
    streams = ", ".join(f"{name!r}: {code}" for name, code in STREAMS.items())
    code = PROGRAM.replace("STREAMS", f"{{{streams}}}")
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == dict.fromkeys(STREAMS, 3)
