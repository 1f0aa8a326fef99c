"""MosaicML's streaming datasets in a loader, and MosaicML's own loader: reports their samples and iterators."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from tests.frameworks_real.bases import report_of, use_base, without

DataLoader = use_base(sys.argv[1])
without("torchvision", "torchvision.datasets", "torchvision.transforms", "torchvision.transforms.functional")

from streaming import MDSWriter, StreamingDataLoader, StreamingDataset  # noqa: E402

SIZE = 24


def write(folder: Path) -> None:
    with MDSWriter(out=str(folder), columns={"number": "int"}, size_limit=40) as writer:
        for number in range(SIZE):
            writer.write({"number": number})


def numbers(batch: Any) -> Any:
    return batch["number"].tolist()


def main() -> None:
    folder = Path.cwd() / "shards"
    write(folder)
    answers: dict[str, Any] = {}
    for workers in (0, 2):
        options = {"batch_size": 2, "num_workers": workers}
        data = StreamingDataset(local=str(folder), batch_size=2, shuffle=True, shuffle_seed=3)
        answers[f"plain {workers}"] = report_of(DataLoader(data, **options), numbers)
        data = StreamingDataset(local=str(folder), batch_size=2)
        loader = StreamingDataLoader(data, **options)
        batches = iter(loader)
        got = [numbers(next(batches)) for _ in range(2)]
        state: Any = loader.state_dict()
        del batches
        loader = StreamingDataLoader(StreamingDataset(local=str(folder), batch_size=2), **options)
        loader.load_state_dict(state)
        answers[f"own {workers}"] = {"got": got, **report_of(loader, numbers, 1)}
    print(json.dumps(answers))  # noqa: T201


if __name__ == "__main__":
    main()
