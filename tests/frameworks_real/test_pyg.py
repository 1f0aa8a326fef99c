"""Loaders of torch-geometric on top of feedline's: the same nodes and graphs, as the same objects, as on top of torch's."""

from __future__ import annotations

from pathlib import Path

from tests.frameworks_real.bases import NAMES
from tests.frameworks_real.conftest import need
from tests.frameworks_real.ranks import run_ranks

need("torch_geometric")

SCRIPT = Path(__file__).with_name("pyg_loaders.py")


def test_loaders_on_both_bases(tmp_path: Path) -> None:
    by_torch, by_feedline = (run_ranks(SCRIPT, 1, base, folder=tmp_path)[0] for base in NAMES)
    assert list(by_feedline) == list(by_torch)
    for name, told in by_feedline.items():
        assert told["epochs"] == by_torch[name]["epochs"], name
        assert told["length"] == by_torch[name]["length"], name
        assert set(told["iterators"]) == {"TorchBatches"}, name
    for epoch in by_feedline["nodes 2 True False"]["epochs"]:
        assert {batch[0] for batch in epoch} == {"Data"}, "what the sampler returned is filtered in the training process"
        assert sorted(node for batch in epoch for node in batch[1]) == list(range(10))

