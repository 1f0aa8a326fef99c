"""Question: what does a Parquet file of many columns cost, compared with a hand-written dict of arrays in memory?

Knob: what a sample is (`numbers`: 18 columns of numbers; `text`: the same and one column of strings), how feedline gets
it (`arrays`: the hand-written dataset of the peer, a dict of arrays of which `__getitem__` takes one value each; `map`:
`ParquetDataset`; `vector`: the same with 16 columns as one vector; `stream`: `ParquetDataset.stream`), and how many
rows a row group has.

Held still: 200,000 rows, no workers, batches of 64 in random order; the consumer touches every page.

How to read it: torch's loader has the hand-written dict of arrays, so `x torch` is what changing to feedline gives.
With `arrays` both loaders have the same dataset. With `stream`, torch's loader has what people write for a file larger
than memory: an iterable dataset that reads row groups with pyarrow, in random order, and yields the shuffled rows of
each. `CPU s per 1,000` compares the ways to shuffle with feedline: `map` and `stream`.

    python -m benchmarks.w8_columns
    python -m benchmarks.w8_columns --sample text --form map --row-group 1000000
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks import flags, workloads
from feedline.datasets import ParquetDataset
from feedline.tools.measure import harness, rows

FORMS = ("arrays", "map", "vector", "stream")
FEATURES = [f"x{number}" for number in range(16)]


def write(kind: str, count: int, row_group: int, path: Path) -> None:
    """Write the file."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    generator = np.random.default_rng(0)
    columns: dict[str, Any] = {name: generator.random(count, np.float32) for name in FEATURES}
    columns |= {"label": np.arange(count) % 1000, "number": np.arange(count)}
    if kind == "text":
        columns["name"] = [f"row number {number}" for number in range(count)]
    pq.write_table(pa.table(columns), path, row_group_size=row_group)


class DictOfArrays:
    """What people write: all columns in memory, and one value of each for a sample."""

    def __init__(self, path: Path) -> None:
        import pyarrow.parquet as pq

        table = pq.read_table(path)
        self.columns = {name: table.column(name).to_numpy() for name in table.column_names}

    def __len__(self) -> int:
        return len(self.columns["label"])

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {name: column[index] for name, column in self.columns.items()}


class RowsOfGroups(torch.utils.data.IterableDataset[dict[str, Any]]):
    """What people write for a file larger than memory: row groups in random order, and the rows of each shuffled."""

    def __init__(self, path: Path) -> None:
        import pyarrow.parquet as pq

        self.path = path
        self.count: int = pq.read_metadata(path).num_rows

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[dict[str, Any]]:
        import pyarrow.parquet as pq

        file, generator = pq.ParquetFile(self.path), np.random.default_rng()
        for group in generator.permutation(file.metadata.num_row_groups).tolist():
            table = file.read_row_group(group)
            columns = {name: table.column(name).to_numpy() for name in table.column_names}
            for row in generator.permutation(table.num_rows).tolist():
                yield {name: column[row] for name, column in columns.items()}


def main(argv: Sequence[str] | None = None) -> int:
    parser = flags.parser(__doc__, engine=["process"], seconds=1.0, workers=[0], samples=200_000, batch_size=64)
    flags.choose(parser, "--sample", ("numbers", "text"))
    flags.choose(parser, "--form", FORMS)
    parser.add_argument("--row-group", type=int, nargs="+", default=[2000, 1_000_000], help="rows of a row group")
    flags.add_data(parser)
    arguments = parser.parse_args(argv)
    count = arguments.samples
    entries: list[harness.Entry] = []
    for kind in arguments.sample:
        for row_group in arguments.row_group:
            name = f"columns/{kind}-{count}-{row_group}.parquet"
            path = workloads.stored(arguments.data, name, partial(write, kind, count, row_group))
            by_hand = DictOfArrays(path)
            for form in arguments.form:
                case: harness.Case = {"sample": kind, "row group": row_group, "form": form}
                made = partial(dataset, path, kind, form, RowsOfGroups(path) if form == "stream" else by_hand)
                if form != "stream":
                    entries += rows.loaders(arguments, case, made, shuffle=True, drop_last=True)
                    continue
                for side in harness.sides(0, ()):
                    opened = partial(opened_by, side, made, {"batch_size": arguments.batch_size})
                    entries.append(
                        rows.steady({**case, "workers": 0}, side, opened, arguments, batch_size=arguments.batch_size)
                    )
    rows.publish("w8_columns", rows.measure(entries, arguments), arguments, columns=(rows.SAMPLES, *rows.COSTS))
    return 0


# Any: a loader and its options.
def opened_by(side: harness.Side, made: Any, options: dict[str, Any]) -> Any:
    return side.open(made(side), **options)


def dataset(path: Path, kind: str, form: str, by_hand: object, side: harness.Side) -> object:
    if side.library == harness.TORCH or form == "arrays":
        return by_hand
    if form == "vector":
        texts = {"name": "name"} if kind == "text" else {}
        return ParquetDataset(path, {"features": FEATURES, "label": "label", "number": "number", **texts})
    parquet = ParquetDataset(path)
    return parquet.stream(shuffle=True) if form == "stream" else parquet


if __name__ == "__main__":
    sys.exit(main())
