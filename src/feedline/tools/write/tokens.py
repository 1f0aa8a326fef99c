"""`feedline.text.write_tokens`: tokenize texts in parallel, and write them as token files."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import filterfalse
from pathlib import Path
from typing import Literal

import numpy as np

from feedline.datasets.framework.kind import kind_of
from feedline.errors import BadOption
from feedline.loader.base import session_of
from feedline.loader.loader import Loader
from feedline.system.files import make_folder_for
from feedline.system.options import checked_count
from feedline.system.process import core_count
from feedline.text.encoder import Encoder, EndOption, open_tokenizer, tokenizer_hash, tokenizer_name
from feedline.text.token_file import ENDING, MAGIC, opened
from feedline.tools.write.opening import Opened, dataset_fingerprint, open_source
from feedline.tools.write.options import as_path, check_apart
from feedline.tools.write.pack import full_disk_explained
from feedline.tools.write.run import Stage
from feedline.tools.write.token_run import Joined, TokenRun, WrittenTokens
from feedline.tools.write.work import WorkFolder
from feedline.types import DatasetKind, EngineName

SHARD_TOKENS = 1 << 30
"""Default number of tokens in a shard."""
_BATCH = 128
"""Default number of documents in one task of a worker."""


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

    The output is built in `OUT.packing`, beside `out`, checked, and only then renamed to `out`. If the run is
    interrupted in any way, the same call continues near the place where it was, and the result has the same bytes. The
    result does not depend on the number of workers.

    Args:
        source: a dataset of texts, or of dicts or tuples with a text. It may also be a name as on the command line: the
            path of a store or a folder, or "module:object".
        out: a file that ends in `.bin`, or a folder of shards `tokens-00000.bin`, `tokens-00001.bin` and so on.
        tokenizer: as for `tokenize`. It may also be a name: the path of a tokenizer.json, "module:function", or the
            name of a tokenizer on the Hugging Face Hub.
        field: the key of the text in a sample, or its place in a tuple. Samples that are texts need none.
        append_eos: True to append the tokenizer's end-of-text token to each document, or the id of a token to append.
        dtype: "uint16" or "uint32"; by default uint16 if the tokenizer is known to have at most 65,536 tokens.
        shard_tokens: approximate number of tokens in a shard; 2^30 by default. Only if `out` is a folder.
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
    with _opened(source, path, field) as opened:
        dataset = opened.dataset
        total = len(dataset) if kind_of(dataset, "source") is DatasetKind.MAP else None
        loader = Loader(
            dataset,
            batch,
            collate_fn=Joined(encoder, field, os.getpid()),
            workers=core_count() if workers is None else workers,
            engine=engine,
            start_method=start_method,
            on_error=on_error,
            seed=0,
        )
        session_of(loader).rank_watch.is_over = True  # this process writes everything, whatever its rank
        job: dict[str, object] = {
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
        work = WorkFolder(path, job, restart=restart, check=check_place)
        most = None if path.suffix == ENDING else shard_tokens or SHARD_TOKENS
        run = TokenRun(loader, work, encoder, most, total, report or (lambda _: None))
        try:
            with full_disk_explained(path, work):
                written = run.run(path, str(out), check=check)
        finally:
            run.close()
            loader.close()
            work.close()
    return replace(written, seconds=time.monotonic() - begin)


def _opened(source: object, out: Path, field: str | int | None) -> Opened:
    """Open a dataset that is given as a path or as module:object; return any other dataset unchanged."""
    if isinstance(source, os.PathLike):
        source = os.fspath(source)
    if not isinstance(source, str):
        return Opened("", source, "")
    check_apart(source, out)
    return open_source(source, fields=((field, field),) if isinstance(field, str) else None)


def _check_place(out: Path, *, overwrite: bool, shard_tokens: int | None) -> None:
    if shard_tokens is not None:
        checked_count("shard_tokens", shard_tokens, 1)
        if out.suffix == ENDING:
            raise BadOption(
                f"Shards are files in a folder, but {out.name!r} is the name of one file. Give a folder: "
                f"{str(out.with_suffix(''))!r}."
            )
    make_folder_for(out)
    if not out.exists() and not out.is_symlink():
        return
    if not overwrite or out.is_symlink():
        raise BadOption(f"{out} exists already. Use --overwrite (overwrite=True) to replace it, or give another name.")
    if out.is_dir() != (out.suffix != ENDING):
        raise BadOption(f"{out} is a {'folder' if out.is_dir() else 'file'}, and cannot be replaced by the other.")
    stranger = next(filterfalse(_is_own, sorted(out.iterdir())), None) if out.is_dir() else None
    if stranger is not None:
        raise BadOption(
            f"{out} is not replaced, because write_tokens did not write {stranger.name!r} there. Remove it, or give "
            "another name."
        )


def _is_own(file: Path) -> bool:
    """True for a shard that `write_tokens` wrote."""
    if file.is_symlink() or not file.is_file() or not file.match(f"tokens-*{ENDING}"):
        return False
    with opened(str(file)) as content:
        return content.read(len(MAGIC)) == MAGIC
