"""Several datasets mixed: sources of different formats in given proportions, which change while training runs.

    python examples/mixed_datasets.py

Shows: `feedline.datasets.mix` makes one dataset out of several, here a Parquet file, a tar shard and a list. The
proportions hold throughout the epoch, not only on average. A small dataset is repeated as often as its share requires,
each time in another order. An epoch continues where the previous one ended, so that every sample has its turn.
`loader.broadcast("set_weights", ...)` changes the proportions in all workers. The mixture can be resumed from a state
like any dataset.

Look at: the "share" of each dataset in each epoch beside what was "asked for", how often "each sample" of it came, and
the batches that a resumed loader delivers "as before".
"""

from __future__ import annotations

import argparse
import io
import tarfile
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from feedline import DataLoader
from feedline.datasets import ParquetDataset, TarDataset, mix

NAMES = ("web", "books", "code")
SIZES = (3000, 600, 60)


def write_texts(folder: Path) -> list[Any]:
    """Write the three datasets and return them: each sample is a text."""
    texts = {name: [f"{name} {number}" for number in range(size)] for name, size in zip(NAMES, SIZES, strict=True)}
    pq.write_table(pa.table({"text": texts["web"]}), folder / "web.parquet", row_group_size=500)
    with tarfile.open(folder / "books.tar", "w") as file:
        for number, text in enumerate(texts["books"]):
            info = tarfile.TarInfo(f"{number:04d}.txt")
            info.size = len(text)
            file.addfile(info, io.BytesIO(text.encode()))
    return [
        ParquetDataset(folder / "web.parquet", "text"),
        TarDataset(str(folder / "books.tar"), "txt", cache=False),
        texts["code"],
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--temperature", type=float, default=2.0, help="1 for the sizes, higher for more of the small")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        datasets = write_texts(Path(name))
        powers = np.array(SIZES) ** (1 / options.temperature)
        by_size = (powers / powers.sum()).tolist()

        def make_loader() -> DataLoader[Any, Any]:
            mixture = mix(datasets, by_size, size=2000, seed=0)
            return DataLoader(mixture, 40, num_workers=2, persistent_workers=True, seed=0)

        loader = make_loader()
        came: Counter[str] = Counter()
        for epoch, weights in enumerate((by_size, by_size, [0.2, 0.2, 0.6])):
            if weights is not by_size:
                loader.broadcast("set_weights", weights)
            texts = [text for batch in loader for text in batch]
            if weights is by_size:
                came.update(texts)
            kinds = Counter(text.split()[0] for text in texts)
            for kind, weight in zip(NAMES, weights, strict=True):
                share = kinds[kind] / len(texts)
                print(f"epoch {epoch}: {kind:>5} has a share of {share:5.1%}, asked for: {weight:5.1%}")
                assert abs(share - weight) < 0.01
        for kind, size in zip(NAMES, SIZES, strict=True):
            counts = [came[f"{kind} {number}"] for number in range(size)]
            print(f"in two epochs, each sample of {kind} came {min(counts)} or {max(counts)} times")
            assert max(counts) - min(counts) <= 1

        loader = make_loader()
        batches = iter(loader)
        for _ in range(20):
            next(batches)
        state = loader.state_dict()
        expected = list(batches)
        resumed = make_loader()
        resumed.load_state_dict(state)
        rest = list(resumed)
        print(f"resumed after 20 batches: the other {len(rest)} come as before: {rest == expected}")
        assert rest == expected
        for each in (loader, resumed):
            each.close()


if __name__ == "__main__":
    torch.manual_seed(0)
    main()
