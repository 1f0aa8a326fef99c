"""Question: how many tokens per second come from a token file in random order?

Knob: the peer (`torch`: the usual dataset around `np.memmap` in torch's loader; `litdata`: its `TokensLoader` and
`StreamingDataLoader`; `megatron`: Megatron's `IndexedDataset`, read as its `GPTDataset` does, in torch's loader) and
the number of workers.

Held still: the same 10^8 tokens as 16-bit numbers, in documents of 600 tokens on average, shuffled, in blocks of 2,048,
batches of 32. A batch is the tokens and the tokens after them, both int64; every page of both is touched. litdata
returns blocks of 2,049 tokens, which this script, like litdata's users, cuts and converts in the training loop.

How to read it: `x torch` is the ratio to the usual dataset at the same number of workers. A batch has 1 MB, so high
rates are limited only by memory bandwidth. Files are read from the page cache. litdata shuffles within its chunks only.

    python -m benchmarks.w13_tokens
    python -m benchmarks.w13_tokens --block 512 --workers 0 --peers litdata
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks import flags, peers, workloads
from feedline.tools.measure import harness, rows
from feedline.tools.measure.harness import Loading

MEAN_LENGTH = 600
VOCABULARY = 50_000
CHUNK = 1 << 22
"""Tokens to write at a time, and in a chunk of litdata's."""


def main(argv: Sequence[str] | None = None) -> int:
    parser = flags.parser(
        __doc__, engine=["process"], seconds=1.0, workers=[0, 2], tokens=10**8, block=2048, batch_size=32
    )
    ways = {"torch": usual, "feedline": ours, "litdata": litdatas, "megatron": megatrons}
    peers.add_flag(parser, ways)
    flags.add_data(parser)
    arguments = parser.parse_args(argv)
    folder = workloads.stored(arguments.data, f"tokens-{arguments.tokens}", partial(write, arguments.tokens))
    chosen = {name: partial(way, folder, arguments.block) for name, way in peers.chosen(arguments, ways).items()}
    outcomes = rows.measure(list(rows.entries(arguments, {}, chosen)), arguments)
    tokens = rows.Column(
        "samples_per_s", "M tokens/s", arguments.block / 1e6, digits=1, with_range=True, better="higher"
    )
    rows.publish("w13_tokens", outcomes, arguments, columns=(tokens, *rows.COSTS))
    return 0


def write(count: int, folder: Path) -> None:
    """Write the tokens as a token file; the other files are made from it."""
    from feedline.text import TokenWriter

    folder.mkdir()
    generator = np.random.default_rng(0)
    with TokenWriter(folder / "tokens.bin", dtype="uint16") as writer:
        for first in range(0, count, CHUNK):
            tokens = generator.integers(0, VOCABULARY, min(CHUNK, count - first), np.uint16)
            cuts = np.unique(generator.integers(1, max(len(tokens), 2), len(tokens) // MEAN_LENGTH))
            writer.write(np.split(tokens, cuts))


def tokens_of(folder: Path) -> NDArray[np.uint16]:
    """Return all tokens as a memory map; those of a token file begin after its header."""
    from feedline.text import TokenDataset
    from feedline.text.token_file import HEADER_BYTES

    path = folder / "tokens.bin"
    return np.memmap(path, np.uint16, "r", HEADER_BYTES, (TokenDataset(path).token_count,))


def usual(folder: Path, block: int, loading: Loading) -> harness.LoaderLike:
    return loading.open(workloads.TokenBlocks(tokens_of(folder), block), shuffle=True, drop_last=True)


def ours(folder: Path, block: int, loading: Loading) -> harness.LoaderLike:
    from feedline.text import TokenDataset

    return loading.open(TokenDataset(folder / "tokens.bin", block), shuffle=True, drop_last=True, seed=1)


def litdatas(folder: Path, block: int, loading: Loading) -> peers.Peer:
    import litdata
    from litdata.streaming.item_loader import TokensLoader
    from litdata.streaming.writer import BinaryWriter

    chunks = folder / f"litdata-{block}"
    if not (chunks / "index.json").exists():
        chunks.mkdir(exist_ok=True)
        loader = TokensLoader(block_size=block + 1)
        # Chunks hold whole blocks: litdata drops the tokens after the last one in each.
        length = max(1, CHUNK // (block + 1)) * (block + 1)
        writer = BinaryWriter(str(chunks), chunk_size=length, item_loader=loader)
        tokens = tokens_of(folder)
        for number, first in enumerate(range(0, len(tokens), length)):
            writer[number] = torch.from_numpy(tokens[first : first + length].astype(np.int32))
        writer.done()
        writer.merge(1)
    dataset = litdata.StreamingDataset(
        str(chunks), item_loader=TokensLoader(block_size=block + 1), shuffle=True, drop_last=True, seed=1
    )
    loader = litdata.StreamingDataLoader(dataset, drop_last=True, **loading.options)
    return peers.Peer(lambda: loader, loading.workers, len(loader), _cut)


def _cut(batch: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return batch[:, :-1].long(), batch[:, 1:].long()


class Megatrons(torch.utils.data.Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Blocks of an `IndexedDataset`: the parts of documents are read and joined, as in Megatron's `GPTDataset`."""

    def __init__(self, prefix: Path, block: int) -> None:
        from megatron.core.datasets.indexed_dataset import IndexedDataset

        self.documents = IndexedDataset(str(prefix))
        self.ends = np.cumsum(self.documents.sequence_lengths, dtype=np.int64)
        self.block = block

    def __len__(self) -> int:
        return int(self.ends[-1] - 1) // self.block

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        first = index * self.block
        last = first + self.block + 1
        document, parts = int(np.searchsorted(self.ends, first, side="right")), []
        while first < last:
            end = int(self.ends[document])
            offset = first - (int(self.ends[document - 1]) if document else 0)
            parts.append(self.documents.get(document, offset, min(end, last) - first))
            first, document = min(end, last), document + 1
        tokens = torch.from_numpy(np.concatenate(parts)).long()
        return tokens[:-1].contiguous(), tokens[1:].contiguous()


def megatrons(folder: Path, block: int, loading: Loading) -> harness.LoaderLike:
    with warnings.catch_warnings():  # of packages for GPUs that Megatron would like to have
        warnings.simplefilter("ignore")
        from megatron.core.datasets.indexed_dataset import IndexedDatasetBuilder

    from feedline.text import TokenDataset

    prefix = folder / "megatron"
    if not prefix.with_suffix(".idx").exists():
        builder = IndexedDatasetBuilder(str(prefix.with_suffix(".bin")), dtype=np.uint16)
        lengths = TokenDataset(folder / "tokens.bin").documents.lengths.tolist()
        builder.add_document(torch.from_numpy(tokens_of(folder).astype(np.int32)), lengths)
        builder.finalize(str(prefix.with_suffix(".idx")))
    return loading.open(Megatrons(prefix, block), shuffle=True, drop_last=True)


if __name__ == "__main__":
    sys.exit(main())
