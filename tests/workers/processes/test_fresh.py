"""What a spawned worker imports before its first sample: every module delays the first batch, in every worker."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from feedline import DataLoader

PROGRAM = """
import json, sys
from feedline import DataLoader

class Modules:
    def __len__(self):
        return 2

    def __getitem__(self, index):
        return json.dumps(sorted(name for name in sys.modules if name.partition(".")[0] == "feedline"))

if __name__ == "__main__":
    loader = DataLoader(Modules(), batch_size=None, num_workers=1, multiprocessing_context="spawn")
    print(next(iter(loader)))
"""

NOT_OF_A_WORKER = (
    "datasets",
    "delivery.machine",
    "delivery.state",
    "device",
    "images",
    "insight",
    "loader.rebuilding",
    "loader.session",
    "order",
    "samplers",
    "simulation",
    "tools",
    "workers.forkserver",
    "workers.handles",
    "workers.lifetime",
    "workers.portable",
    "workers.processes.arena",
    "workers.processes.engine",
    "workers.ray.engine",
)
"""Folders and modules that only the process with the loader needs."""

MOST = 95
"""Modules of feedline in a worker whose program imports the loader: 89 when this was written, 169 before."""


class Modules:
    """Its only sample says which modules are loaded where it is made."""

    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> list[str]:
        return list(sys.modules)


def test_a_forked_worker_imports_nothing() -> None:
    """What only workers need is imported before the fork, once."""
    loader = DataLoader(Modules(), batch_size=None, num_workers=1, multiprocessing_context="fork")
    batches = iter(loader)
    before = set(sys.modules)
    assert set(next(batches)) <= before


@pytest.mark.slow
def test_a_spawned_worker_imports_only_its_own_side(tmp_path: Path) -> None:
    program = tmp_path / "train.py"
    program.write_text(PROGRAM)
    done = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    loaded = json.loads(done.stdout)
    parts = tuple(f"feedline.{part}" for part in NOT_OF_A_WORKER)
    assert not [name for name in loaded if name.startswith(tuple(f"{part}." for part in parts)) or name in parts]
    assert len(loaded) <= MOST, loaded
