"""Tabular data: train on a table in Parquet and on the same table in HDF5.

    python examples/tabular.py

Shows: `ParquetDataset` reads only the columns and rows that you request: a list of columns becomes one vector, and
`filters=` keeps the rows of one split. `HDF5Dataset` reads the same samples from arrays. Both read a whole batch at
once, as columns, without making single samples; with the same seed, both deliver the same batches.

Look at: the "samples" of the train and test split, the "batches that differ" between the two formats, the loss of each
"epoch", and the "test accuracy".
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import nn

from feedline import DataLoader
from feedline.datasets import HDF5Dataset, ParquetDataset

FEATURES = [f"sensor_{number}" for number in range(12)]


def write_table(folder: Path, rows: int) -> None:
    """Write a table of sensors, a label and the name of the split, in both formats; HDF5 gets the training rows."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(rows, len(FEATURES))).astype(np.float32)
    label = (x[:, 0] * x[:, 1] + x[:, 2] > 0).astype(np.int64)
    is_train = np.arange(rows) % 5 > 0
    columns = {name: x[:, number] for number, name in enumerate(FEATURES)}
    table = pa.table({**columns, "label": label, "split": np.where(is_train, "train", "test"), "note": ["..."] * rows})
    pq.write_table(table, folder / "table.parquet", row_group_size=2000)
    with h5py.File(folder / "train.h5", "w") as file:
        file["x"], file["label"] = x[is_train], label[is_train]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=4)
    options = parser.parse_args()
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_table(folder, 20_000)
        fields = {"x": FEATURES, "label": "label"}  # twelve columns as one vector; the column "note" is never read
        train = ParquetDataset(folder / "table.parquet", fields, filters=[("split", "=", "train")])
        test = ParquetDataset(folder / "table.parquet", fields, filters=[("split", "=", "test")])
        arrays = HDF5Dataset(folder / "train.h5", ["x", "label"])
        print(f"{len(train)} samples to train on, {len(test)} to test on: {train}")

        def make_loader(dataset: Any) -> DataLoader[Any, Any]:
            return DataLoader(dataset, 256, shuffle=True, seed=0, num_workers=1)

        pairs = list(zip(make_loader(train), make_loader(arrays), strict=True))
        differing = sum(any(not torch.equal(one[key], other[key]) for key in fields) for one, other in pairs)
        print(f"batches that differ between Parquet and HDF5: {differing} of {len(pairs)}")

        model = nn.Sequential(nn.Linear(len(FEATURES), 64), nn.ReLU(), nn.Linear(64, 2))
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
        loader = make_loader(train)
        for epoch in range(options.epochs):
            losses = []
            for batch in loader:
                loss = nn.functional.cross_entropy(model(batch["x"]), batch["label"])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
            print(f"epoch {epoch}: loss {np.mean(losses):.3f}")
        with torch.no_grad():
            right = [(model(batch["x"]).argmax(1) == batch["label"]).sum().item() for batch in DataLoader(test, 1000)]
        print(f"test accuracy: {sum(right) / len(test):.1%}")
    assert differing == 0
    assert sum(right) / len(test) > 0.9


if __name__ == "__main__":
    main()
