"""Question: how many tokens per second come from compressed JSON lines that are tokenized and packed on the fly?

Knob: the library, and the tokenizer (`bytes`: the bytes of the text; `words`: a number for each word, in Python).
`torch` is a generator in torch's loader, as people usually write it: gzip, json, a buffer of tokens. `datasets` is
Hugging Face's streaming in torch's loader, with `group_texts` as in their examples. `torchdata` is nodes that read
lines, a `ParallelMapper` in processes that parses and tokenizes them, and a node that packs. `feedline` is
`JSONLines(shard).stream()` of each shard, mapped, repeated, packed and batched, and interleaved with the other shards.

Held still: 8 shards of gzip with 1,000 texts of 100 to 1,000 words each; rows of 1,024 tokens, cut from the
concatenated texts, batches of 32, two workers. Shards are read over and over. feedline also delivers segment ids and
positions.

How to read it: `x torch` is the ratio to the plain generator. Decompressing and parsing JSON are C code in all of them.

    python -m benchmarks.w15_json_lines
    python -m benchmarks.w15_json_lines --tokenizer words --workers 0 2 --peers datasets
"""

from __future__ import annotations

import gzip
import itertools
import json
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks import flags, peers, workloads
from feedline.tools.measure import harness, rows
from feedline.tools.measure.harness import Loading

Tokens = NDArray[np.int32]
Tokenize = Callable[[str], Tokens]


def main(argv: Sequence[str] | None = None) -> int:
    parser = flags.parser(
        __doc__, engine=["process"], seconds=2.0, workers=[2], shards=8, texts=1000, length=1024, batch_size=32
    )
    flags.choose(parser, "--tokenizer", tuple(TOKENIZERS))
    ways = {"torch": usual, "feedline": ours, "datasets": hugging_faces, "torchdata": torchdatas}
    peers.add_flag(parser, ways)
    flags.add_data(parser)
    arguments = parser.parse_args(argv)
    chosen = peers.chosen(arguments, ways)
    name = f"json-lines-{arguments.shards}-{arguments.texts}"
    folder = workloads.stored(arguments.data, name, partial(write, arguments.shards, arguments.texts))
    paths = sorted(map(str, folder.glob("*.jsonl.gz")))
    entries: list[harness.Entry] = []
    for kind in arguments.tokenizer:
        given = {name: partial(way, paths, TOKENIZERS[kind], arguments.length) for name, way in chosen.items()}
        entries += rows.entries(arguments, {"tokenizer": kind}, given, length=peers.ENDLESS)
    tokens = rows.Column(
        "samples_per_s", "M tokens/s", arguments.length / 1e6, digits=2, with_range=True, better="higher"
    )
    columns = (tokens, *rows.COSTS)
    rows.publish("w15_json_lines", rows.measure(entries, arguments), arguments, columns=columns, details=False)
    return 0


def write(shards: int, texts: int, folder: Path) -> None:
    """Write the shards."""
    folder.mkdir()
    generator = np.random.default_rng(0)
    letters = generator.integers(97, 123, (5000, 12), np.uint8)
    words = [bytes(word[: 2 + number % 9]).decode() for number, word in enumerate(letters)]
    frequent = generator.zipf(1.2, 200_000) % len(words)
    for shard in range(shards):
        with gzip.open(folder / f"{shard:04d}.jsonl.gz", "wt", compresslevel=6, encoding="utf-8") as file:
            for number in range(texts):
                chosen = generator.choice(frequent, generator.integers(100, 1000)).tolist()
                text = " ".join([words[word] for word in chosen])
                file.write(json.dumps({"id": f"{shard}-{number}", "text": text, "source": "generated"}) + "\n")


def of_bytes(text: str) -> Tokens:
    return np.frombuffer(text.encode(), np.uint8).astype(np.int32)


def of_words(text: str) -> Tokens:
    return np.array([zlib.crc32(word.encode()) % 50_000 for word in text.split()], np.int32)


TOKENIZERS: dict[str, Tokenize] = {"bytes": of_bytes, "words": of_words}


def texts_of(path: str) -> Iterator[str]:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        for line in file:
            yield json.loads(line)["text"]


def rows_of(texts: Iterable[Tokens], length: int) -> Iterator[Tokens]:
    """Cut rows from the concatenated tokens, as people do."""
    held: list[Tokens] = []
    count = 0
    for tokens in texts:
        held.append(tokens)
        count += len(tokens)
        if count >= length:
            joined = np.concatenate(held)
            whole = count // length * length
            yield from joined[:whole].reshape(-1, length)
            held, count = [joined[whole:]], count - whole


class Usual(torch.utils.data.IterableDataset[Tokens]):
    """What people write: every worker reads some of the shards, over and over."""

    def __init__(self, paths: list[str], tokenize: Tokenize, length: int) -> None:
        self.paths, self.tokenize, self.length = paths, tokenize, length

    def __iter__(self) -> Iterator[Tokens]:
        return rows_of(map(self.tokenize, self._texts()), self.length)

    def _texts(self) -> Iterator[str]:
        worker = torch.utils.data.get_worker_info()
        first, step = (0, 1) if worker is None else (worker.id, worker.num_workers)
        while True:
            for path in self.paths[first::step]:
                yield from texts_of(path)


def usual(paths: list[str], tokenize: Tokenize, length: int, loading: Loading) -> harness.LoaderLike:
    return loading.open(Usual(paths, tokenize, length))


def ours(paths: list[str], tokenize: Tokenize, length: int, loading: Loading) -> harness.LoaderLike:
    import feedline
    from feedline.datasets import JSONLines

    shards = [
        feedline.pipe(JSONLines(path, "text").stream())
        .map(tokenize)
        .repeat()
        .pack(length, strategy="concat", window=64)
        .batch(loading.batch_size)
        for path in paths
    ]
    return loading.open(shards[0].interleave(*shards[1:]), batch_size=None)


# Any, from here on: what other libraries make.
def hugging_faces(paths: list[str], tokenize: Tokenize, length: int, loading: Loading) -> Any:
    import datasets

    datasets.disable_progress_bars()
    stream = datasets.load_dataset("json", data_files=paths, split="train", streaming=True)
    stream = stream.repeat(None).map(
        lambda sample: {"tokens": tokenize(sample["text"])}, remove_columns=["id", "text", "source"]
    )
    grouped = stream.with_format("numpy").map(partial(_grouped, length), batched=True)
    return loading.open(grouped.with_format("torch"))


def _grouped(length: int, batch: dict[str, Any]) -> dict[str, Any]:
    joined = np.concatenate(list(batch["tokens"]))
    return {"tokens": list(joined[: len(joined) // length * length].reshape(-1, length))}


def torchdatas(paths: list[str], tokenize: Tokenize, length: int, loading: Loading) -> peers.Peer:
    from torchdata import nodes

    class Rows(nodes.BaseNode[Any]):
        """Packs, as torchdata has no such node."""

        def __init__(self, source: nodes.BaseNode[Any]) -> None:
            super().__init__()
            self.source = source

        def reset(self, initial_state: dict[str, Any] | None = None) -> None:
            super().reset(initial_state)
            self.source.reset(None)
            self.rows = rows_of((next(self.source) for _ in itertools.count()), length)

        def next(self) -> Any:
            return next(self.rows)

        def get_state(self) -> dict[str, Any]:
            return {}

    lines = nodes.IterableWrapper(Lines(paths))
    parse = partial(parsed, tokenize)
    batches = nodes.Mapper(nodes.Batcher(Rows(peers.mapped(lines, parse, loading)), loading.batch_size), _stacked)
    return peers.of_nodes(batches, loading)


class Lines:
    """The lines of all files, over and over."""

    def __init__(self, paths: list[str]) -> None:
        self.paths = paths

    def __iter__(self) -> Iterator[bytes]:
        while True:
            for path in self.paths:
                with gzip.open(path) as file:
                    yield from file


def parsed(tokenize: Tokenize, line: bytes) -> Tokens:
    return tokenize(json.loads(line)["text"])


def _stacked(batch: list[Tokens]) -> torch.Tensor:
    return torch.from_numpy(np.stack(batch))


if __name__ == "__main__":
    sys.exit(main())
