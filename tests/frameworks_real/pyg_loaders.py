"""torch-geometric's loaders, based on torch's loader or feedline's: reports their nodes and graphs."""

from __future__ import annotations

import json
import sys
from typing import Any

import torch

from tests.frameworks_real.bases import report_of, use_base

use_base(sys.argv[1])

from torch_geometric.data import Data  # noqa: E402
from torch_geometric.loader import DataLoader, NodeLoader, ZipLoader  # noqa: E402
from torch_geometric.sampler import BaseSampler, NodeSamplerInput, SamplerOutput  # noqa: E402

NODES = 10


class WithNext(BaseSampler):  # type: ignore[misc]  # the package has no types
    """Samples every node with the next one, so that no compiled package is needed."""

    def sample_from_nodes(self, inputs: NodeSamplerInput, **options: Any) -> SamplerOutput:
        nodes, rows = torch.unique(torch.cat([inputs.node, (inputs.node + 1) % NODES]), return_inverse=True)
        count = len(inputs.node)
        edges = torch.arange(count)
        return SamplerOutput(nodes, rows[:count], rows[count:], edges, metadata=(inputs.input_id, inputs.time))

    def sample_from_edges(self, inputs: Any, **options: Any) -> Any:
        raise NotImplementedError("no loader here samples edges")

    @property
    def edge_permutation(self) -> None:
        return None


def graph() -> Data:
    around = torch.stack([torch.arange(NODES), (torch.arange(NODES) + 1) % NODES])
    return Data(x=torch.arange(NODES)[:, None] * 10.0, edge_index=around)


def node_loader(**options: Any) -> NodeLoader:
    return NodeLoader(graph(), WithNext(), batch_size=4, **options)


def of_nodes(batch: Any) -> Any:
    return type(batch).__name__, batch.input_id.tolist(), batch.n_id.tolist(), batch.x.flatten().tolist()


def main() -> None:
    torch.manual_seed(5)
    answers: dict[str, Any] = {}
    for workers, persistent in ((0, False), (2, False), (2, True)):
        options = {"num_workers": workers, "persistent_workers": persistent}
        for per_worker in (True, False):
            loader = node_loader(filter_per_worker=per_worker, shuffle=True, **options)
            answers[f"nodes {workers} {persistent} {per_worker}"] = report_of(loader, of_nodes)
        zipped = ZipLoader([node_loader(), node_loader()], batch_size=4, filter_per_worker=False, **options)
        answers[f"zip {workers} {persistent}"] = report_of(zipped, lambda pair: [of_nodes(batch) for batch in pair])
        graphs = DataLoader([Data(x=torch.full((n, 1), n)) for n in range(1, 8)], 3, shuffle=True, **options)
        answers[f"graphs {workers} {persistent}"] = report_of(
            graphs, lambda batch: (type(batch).__name__, batch.num_graphs, batch.x.flatten().tolist())
        )
    print(json.dumps(answers))  # noqa: T201


if __name__ == "__main__":
    main()
