"""LitData's streaming datasets in a loader, and LitData's own loader: reports their samples and iterators."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch

from tests.frameworks_real.bases import report_of, use_base

DataLoader = use_base(sys.argv[1])

from litdata import StreamingDataLoader, StreamingDataset  # noqa: E402
from litdata.streaming.writer import BinaryWriter  # noqa: E402

SIZE = 24


def write(folder: Path) -> None:
    writer = BinaryWriter(str(folder), chunk_size=4)
    for number in range(SIZE):
        writer[number] = number
    writer.done()
    writer.merge(1)


def resumed(kind: Any, folder: str, options: dict[str, Any]) -> Any:
    """Save after two batches, load into another loader, and return its batches."""
    loader, other = (kind(StreamingDataset(folder), **options) for _ in range(2))
    batches = iter(loader)
    got = [next(batches).tolist() for _ in range(2)]
    state = loader.state_dict()
    rest = [batch.tolist() for batch in batches]
    other.load_state_dict(state)
    return {"got": got, "rest": rest, "again": [batch.tolist() for batch in other]}


def main() -> None:
    folder = Path.cwd() / "chunks"
    write(folder)
    answers: dict[str, Any] = {}
    for workers in (0, 2):
        options = {"batch_size": 2, "num_workers": workers}
        plain = DataLoader(StreamingDataset(str(folder)), **options)
        answers[f"plain {workers}"] = report_of(plain, torch.Tensor.tolist)
        own = StreamingDataLoader(StreamingDataset(str(folder), shuffle=True), **options)
        answers[f"own {workers}"] = report_of(own, torch.Tensor.tolist)
        answers[f"own resumed {workers}"] = resumed(StreamingDataLoader, str(folder), options)
        if sys.argv[1] == "feedline":
            answers[f"resumed {workers}"] = resumed(DataLoader, str(folder), options)
        else:  # torch's loader has no state
            batches = answers["plain " + str(workers)]["epochs"][0]
            answers[f"resumed {workers}"] = {"got": batches[:2], "rest": batches[2:], "again": batches[2:]}
    print(json.dumps(answers))  # noqa: T201


if __name__ == "__main__":
    main()
