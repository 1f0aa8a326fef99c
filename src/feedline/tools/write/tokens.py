"""`feedline.text.write_tokens`: tokenize texts in parallel, and write them as token files."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from feedline.datasets.framework.kind import kind_of
from feedline.errors import BadOption
from feedline.system.options import checked_count
from feedline.text.encoder import Encoder, EndOption, open_tokenizer, text_of, tokenizer_hash, tokenizer_name
from feedline.text.token_file import ENDING, MAGIC, opened, verify
from feedline.text.writing import TokenWriter
from feedline.tools.write.opening import dataset_fingerprint, loader_options, open_given
from feedline.tools.write.options import as_path, check_replaceable
from feedline.tools.write.place import LocalPlace
from feedline.tools.write.run import Content, Run, Stage, loader_of
from feedline.types import DatasetKind, EngineName, JsonObject

SHARD_TOKENS = 1 << 28
"""Default number of tokens in a shard. A guess: a run that was interrupted repeats at most some minutes."""
_BATCH = 128
"""Default number of documents in one task of a worker."""


@dataclass(frozen=True)
class WrittenTokens:
    """The result of `write_tokens`."""

    path: Path
    files: tuple[Path, ...]
    """The token files: `path` itself, or the shards in it."""
    token_count: int
    document_count: int
    size: int
    """Bytes of all files."""
    resumed: int = 0
    """Documents that an earlier, interrupted run had written."""
    skipped: int = 0
    """Documents that were left out, because they could not be read."""
    seconds: float = 0.0
    line: str = ""
    """The line of Python that reads the output."""


TokenBatch = tuple[NDArray[np.integer], NDArray[np.int64]]
"""The joined tokens of several documents, and the length of each document."""


@dataclass(frozen=True, eq=False)
class Joined:
    """The collate function of the loader: turns a batch of samples into one item, the tokens of all."""

    encoder: Encoder
    text_field: str | int | None
    main_pid: int
    """The process that writes."""

    def __call__(self, samples: Sequence[object]) -> list[TokenBatch]:
        if os.getpid() != self.main_pid:
            # Every core has a worker. Threads of Hugging Face's library would only get in each other's way, and it
            # warns about threads after a fork.
            os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
        tokens = self.encoder([text_of(sample, self.text_field) for sample in samples])
        lengths = np.array([len(one) for one in tokens], np.int64)
        return [(np.concatenate([np.empty(0, self.encoder.dtype), *tokens]), lengths)]


class Tokens(Content):
    """Tokens on their way into one file, or into shards of about `shard_tokens`."""

    stage, shard = "tokenizing", "tokens"

    def __init__(self, folder: Path, encoder: Encoder, shard_tokens: int) -> None:
        super().__init__(folder / f"output{ENDING}")
        self.token_count = self.document_count = 0
        self._encoder = encoder
        self._shard_tokens = shard_tokens
        self._writer: TokenWriter | None = None

    @property
    def count(self) -> int:
        return self.document_count

    def take(self, item: TokenBatch) -> None:
        tokens, lengths = item
        if self._writer is None:
            chosen = self._encoder.tokenizer
            self._writer = TokenWriter(
                self.path,
                dtype=self._encoder.dtype,
                tokenizer=tokenizer_name(chosen),
                tokenizer_hash=tokenizer_hash(chosen),
                end_token=self._encoder.end_token,
            )
        self._writer.write_joined(tokens, lengths)
        self.document_count += len(lengths)
        self.token_count += len(tokens)

    def is_full(self) -> bool:
        return self._writer is not None and self._writer.token_count >= self._shard_tokens

    def finish(self) -> int:
        writer, self._writer = self._writer, None
        if writer is None:
            return 0
        writer.finish()
        return writer.document_count

    def read_back(self, path: Path, report: Callable[[int], object]) -> int:
        size = path.stat().st_size
        count = verify(path, report=lambda done: report(done * self.count // size)).document_count or 0
        report(count)
        return count

    def state(self) -> JsonObject:
        return {"documents": self.count, "tokens": self.token_count}

    def restore(self, state: JsonObject) -> None:
        self.document_count, self.token_count = state["documents"], state["tokens"]

    def nothing(self) -> str:
        return "The dataset has no texts, so there is nothing to write."

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()


def write_tokens(
    source: object,
    out: object,
    tokenizer: object,
    *,
    field: str | int | None = "text",
    append_eos: EndOption = False,
    dtype: object = None,
    shard_tokens: int | None = None,
    batch: int = _BATCH,
    workers: int | None = None,
    engine: EngineName = "auto",
    start_method: str | None = None,
    on_error: Literal["raise", "skip"] = "raise",
    overwrite: bool = False,
    restart: bool = False,
    check: bool = True,
    report: Callable[[Stage], object] | None = None,
) -> WrittenTokens:
    """Tokenize all texts of a dataset in parallel, and write them as a token file, or as several.

    The output is built in `OUT.packing`, beside `out`, checked, and only then renamed to `out`. If a run that writes
    shards is interrupted in any way, the same call continues after the last complete shard, and the result has the same
    bytes; a single file starts over. The result does not depend on the number of workers.

    Args:
        source: a dataset of texts, or of dicts or tuples with a text. It may also be a name as on the command line: the
            path of a store or a folder, or "module:object".
        out: a file that ends in `.bin`, or a folder of shards `tokens-000000.bin`, `tokens-000001.bin` and so on.
        tokenizer: as for `tokenize`. It may also be a name: the path of a tokenizer.json, "module:function", or the
            name of a tokenizer on the Hugging Face Hub.
        field: the key of the text in a sample, or its place in a tuple. Samples that are texts need none.
        append_eos: True to append the tokenizer's end-of-text token to each document, or the id of a token to append.
        dtype: "uint16" or "uint32"; by default uint16 if the tokenizer is known to have at most 65,536 tokens.
        shard_tokens: approximate number of tokens in a shard; 2^28 by default. Only if `out` is a folder.
        batch: documents that a worker tokenizes in one call.
        workers: number of workers; by default, the number of cores.
        engine: the loader's engine; "ray" tokenizes on a Ray cluster.
        start_method: the start method of the loader's worker processes.
        on_error: "skip" to leave out documents that cannot be read, such as damaged lines. Half of them at most.
        overwrite: True to replace an existing output.
        restart: True to start over instead of resuming an interrupted run.
        check: False to skip the final check, which reads the files again and compares their checksums.
        report: called with a `Stage` from time to time.

    Raises:
        BadOption: an option cannot work, the output exists already, or a token id does not fit into the type.
        SourceError: the source or the tokenizer is a path that does not exist.
        PackError: there are no texts, the disk is full, or the output differs when it is read back.

    Example:
        >>> import tempfile
        >>> from feedline.text import TokenDataset, write_tokens
        >>> path = f"{tempfile.mkdtemp()}/tokens.bin"
        >>> texts = ["To be, or not to be, ", "that is the question."]
        >>> written = write_tokens(texts, path, lambda text: list(text.encode()), append_eos=0, workers=0)
        >>> written.document_count, written.token_count
        (2, 44)
        >>> bytes(TokenDataset(path, block=8, labels=None)[0].tolist())
        b'To be, o'
    """
    begin = time.monotonic()
    path = as_path(out)
    check_place = partial(_check_place, path, overwrite=overwrite, shard_tokens=shard_tokens)
    check_place()
    chosen = open_tokenizer(tokenizer) if isinstance(tokenizer, str) else tokenizer
    encoder = Encoder.of(chosen, append_eos=append_eos, dtype=dtype)
    if encoder.dtype == np.int64:
        raise BadOption("dtype='int64' is not a type for token files: those are 'uint16' and 'uint32'.")
    is_sharded = path.suffix != ENDING
    with open_given(source, path, fields=((field, field),) if isinstance(field, str) else None) as opened:
        dataset = opened.dataset
        total = len(dataset) if kind_of(dataset, "source") is DatasetKind.MAP else None
        job: JsonObject = {
            "source": opened.text or f"{type(dataset).__name__} {dataset_fingerprint(dataset)}",
            "documents": total,
            "tokenizer": tokenizer_hash(chosen) or tokenizer_name(chosen),
            "field": field,
            "end_token": encoder.end_token,
            "dtype": str(encoder.dtype),
            "shard_tokens": shard_tokens,
            "batch": batch,
            "on_error": on_error,
        }
        joined = Joined(encoder, field, os.getpid())
        loader = loader_of(dataset, batch, joined, workers, engine=engine, start_method=start_method, on_error=on_error)
        place = LocalPlace(path, job, restart=restart, verify=check, check=check_place)
        tokens = Tokens(place.folder, encoder, shard_tokens or SHARD_TOKENS)
        run = Run(loader, tokens, place, is_sharded, total, check, report or (lambda _: None))
        run.run(path)
    shown = os.path.join(str(out), f"tokens-*{ENDING}") if is_sharded else str(out)
    return WrittenTokens(
        path,
        tuple(path / str(entry["name"]) for entry in run.shards) if is_sharded else (path,),
        tokens.token_count,
        tokens.count,
        run.size,
        run.resumed,
        len(loader.faults) + loader.faults.dropped,
        time.monotonic() - begin,
        f"loader = feedline.Loader(feedline.text.TokenDataset({shown!r}, block=2048), {loader_options()})",
    )


def _check_place(out: Path, *, overwrite: bool, shard_tokens: int | None) -> None:
    if shard_tokens is not None:
        checked_count("shard_tokens", shard_tokens, 1)
        if out.suffix == ENDING:
            raise BadOption(
                f"Shards are files in a folder, but {out.name!r} is the name of one file. Give a folder: "
                f"{str(out.with_suffix(''))!r}."
            )
    check_replaceable(out, is_folder=out.suffix != ENDING, overwrite=overwrite, stranger_in=_stranger_in)


def _stranger_in(folder: Path) -> str | None:
    """Return a name in a folder that is not a shard of tokens; None if there is none."""
    return next((file.name for file in sorted(folder.iterdir()) if not _is_own(file)), None)


def _is_own(file: Path) -> bool:
    """True for a shard that `write_tokens` wrote."""
    if file.is_symlink() or not file.is_file() or not file.match(f"tokens-*{ENDING}"):
        return False
    with opened(str(file)) as content:
        return content.read(len(MAGIC)) == MAGIC
