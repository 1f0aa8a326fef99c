"""torch-geometric's loaders on top of feedline's give the same nodes and graphs, in the same types, as on torch's."""

from __future__ import annotations

from pathlib import Path

from tests.frameworks_real.bases import assert_same
from tests.frameworks_real.conftest import need

need("torch_geometric")


def test_loaders_give_the_same_nodes_and_graphs(tmp_path: Path) -> None:
    found = assert_same("pyg_loaders.py", tmp_path)
    for epoch in found["nodes 2 True False"]["epochs"]:
        assert {batch[0] for batch in epoch} == {"Data"}, "the sampler's output is filtered in the training process"
        assert sorted(node for batch in epoch for node in batch[1]) == list(range(10))
