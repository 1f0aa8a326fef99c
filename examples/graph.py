"""Graphs: many small graphs of different sizes in a batch, with a collate function of your own and plain torch.

    python examples/graph.py

Shows: a batch of graphs is one large graph of several parts. `batch_graphs` concatenates the nodes of all graphs, adds
the number of preceding nodes to the edges of each graph, and records which graph each node belongs to. Nothing is
padded. `TokenBudgetBatchSampler` chooses the graphs so that no batch has more nodes than the memory allows, however
large the graphs are. For PyG's own loaders, see docs/frameworks/pyg.md.

Look at: the "nodes" of the batches, which stay below the budget; the loss of each "epoch"; the "accuracy"; and the
"largest difference" between the scores of a graph in a batch and of the same graph alone, which is only rounding.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import numpy as np
import torch
from torch import nn

from feedline import DataLoader
from feedline.samplers import TokenBudgetBatchSampler

Graph = dict[str, torch.Tensor]
BUDGET = 600


def make_graphs(count: int) -> list[Graph]:
    """Return random trees; in half of them a few edges more close cycles."""
    rng = np.random.default_rng(0)
    graphs = []
    for number in range(count):
        nodes, label = int(rng.integers(8, 60)), number % 2
        parents = [int(rng.integers(0, node)) for node in range(1, nodes)]
        edges = np.array([parents, range(1, nodes)])
        if label:
            edges = np.concatenate([edges, rng.integers(0, nodes, (2, nodes // 3))], 1)
        both_ways = np.concatenate([edges, edges[::-1]], 1)
        degree = np.bincount(both_ways[0], minlength=nodes).astype(np.float32)
        graphs.append(
            {
                "nodes": torch.from_numpy(np.stack([np.ones_like(degree), degree], 1)),
                "edges": torch.from_numpy(both_ways),
                "label": torch.tensor(label),
            }
        )
    return graphs


def batch_graphs(graphs: Sequence[Graph]) -> Graph:
    """Make one graph of several: the collate function."""
    sizes = torch.tensor([len(graph["nodes"]) for graph in graphs])
    before = torch.cumsum(sizes, 0) - sizes
    return {
        "nodes": torch.cat([graph["nodes"] for graph in graphs]),
        "edges": torch.cat([graph["edges"] + offset for graph, offset in zip(graphs, before, strict=True)], 1),
        "graph": torch.repeat_interleave(torch.arange(len(graphs)), sizes),
        "label": torch.stack([graph["label"] for graph in graphs]),
    }


class Network(nn.Module):
    """Two rounds of messages along the edges, then the mean of each graph's nodes."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.own = nn.ModuleList([nn.Linear(2, width), nn.Linear(width, width)])
        self.neighbours = nn.ModuleList([nn.Linear(2, width), nn.Linear(width, width)])
        self.output = nn.Linear(width, 2)

    def forward(self, batch: Graph) -> torch.Tensor:
        """Return the scores of both classes, for each graph."""
        x, (source, target) = batch["nodes"], batch["edges"]
        for own, neighbours in zip(self.own, self.neighbours, strict=True):
            sent = torch.zeros_like(x).index_add(0, target, x[source])
            x = torch.relu(own(x) + neighbours(sent))
        count = len(batch["label"])
        sums = x.new_zeros(count, x.shape[1]).index_add(0, batch["graph"], x)
        sizes = torch.bincount(batch["graph"], minlength=count)
        scores: torch.Tensor = self.output(sums / sizes[:, None])
        return scores


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=5)
    options = parser.parse_args()
    torch.manual_seed(0)
    graphs = make_graphs(800)
    sampler = TokenBudgetBatchSampler([len(graph["nodes"]) for graph in graphs], BUDGET, seed=0)
    loader = DataLoader(graphs, batch_sampler=sampler, collate_fn=batch_graphs, num_workers=2)

    model = Network()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for epoch in range(options.epochs):
        losses, nodes, sizes, right = [], [], [], 0
        for batch in loader:
            scores = model(batch)
            loss = nn.functional.cross_entropy(scores, batch["label"])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            nodes.append(len(batch["nodes"]))
            sizes.append(len(batch["label"]))
            right += int((scores.argmax(1) == batch["label"]).sum())
        if epoch == 0:
            print(f"{len(nodes)} batches of {min(sizes)} to {max(sizes)} graphs, {min(nodes)} to {max(nodes)} nodes")
        assert sum(sizes) == len(graphs)
        assert max(nodes) <= BUDGET
        print(f"epoch {epoch}: loss {np.mean(losses):.2f}, accuracy {right / len(graphs):.0%}")

    with torch.no_grad():
        together = model(batch_graphs(graphs[:50]))
        alone = torch.cat([model(batch_graphs([graph])) for graph in graphs[:50]])
    difference = (together - alone).abs().max().item()
    print(f"largest difference between a graph in a batch and the same one alone: {difference:.0e}")
    assert difference < 1e-3
    assert right / len(graphs) > 0.9


if __name__ == "__main__":
    main()
