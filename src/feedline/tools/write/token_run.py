"""One run of `write_tokens`: the loop from the first text to the finished files.

Workers read and tokenize batches of texts; this process writes them in order. From time to time, a note in the work
folder records how much of the current file is safe on the disk, and the loader's position after it. A run that finds a
note cuts the file back to that length and continues. So it produces the same bytes as an uninterrupted run.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from feedline.errors import BadState, CorruptSource, PackError
from feedline.loader.loader import Loader
from feedline.system.failures import words
from feedline.system.files import sync
from feedline.text.encoder import Encoder, text_of, tokenizer_hash, tokenizer_name
from feedline.text.token_file import ENDING, find_tokens, verify
from feedline.text.writing import LENGTHS, UNFINISHED, TokenWriter
from feedline.tools.write.reading import loader_options
from feedline.tools.write.run import Stage
from feedline.tools.write.work import WorkFolder
from feedline.types import JsonObject, State

CHECKPOINT_TOKENS = 1 << 25
"""A note is written after this many tokens: seconds of work for fast tokenizers."""


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


@dataclass(frozen=True, eq=False)
class Joined:
    """The collate function of the loader: tokenizes a batch of samples, and joins their tokens."""

    encoder: Encoder
    text_field: str | int | None
    main_pid: int
    """The process that writes."""

    def __call__(self, samples: Sequence[object]) -> tuple[NDArray[np.generic], NDArray[np.int64]]:
        if os.getpid() != self.main_pid:
            # Every core has a worker. Threads of Hugging Face's library would only get in each other's way, and it
            # warns about threads after a fork.
            os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
        tokens = self.encoder([text_of(sample, self.text_field) for sample in samples])
        lengths = np.array([len(one) for one in tokens], np.int64)
        return np.concatenate([np.empty(0, self.encoder.dtype), *tokens]), lengths


@dataclass
class TokenRun:
    """One call of `write_tokens`."""

    loader: Loader
    work: WorkFolder
    encoder: Encoder
    shard_tokens: int | None
    """None to write a single file."""
    total: int | None
    report: Callable[[Stage], object]
    _writer: TokenWriter | None = field(default=None, init=False)
    _shards: int = field(default=0, init=False)
    """Complete files."""
    _done: int = field(default=0, init=False)
    """Documents in complete files."""
    _noted: int = field(default=0, init=False)
    """Tokens of the current file at the last note."""

    @property
    def _documents(self) -> int:
        return self._done + (0 if self._writer is None else self._writer.document_count)

    def _path(self, number: int) -> Path:
        if self.shard_tokens is None:
            return self.work.path / f"output{ENDING}"
        return self.work.path / "output" / f"tokens-{number:05d}{ENDING}"

    def run(self, out: Path, given: str, *, check: bool) -> WrittenTokens:
        """Write, check and deliver the files."""
        if self.shard_tokens is not None:
            (self.work.path / "output").mkdir(exist_ok=True)
        state = self._resume()
        resumed = self._documents
        if state != "finished":
            self._write(state)
        paths = [self._path(number) for number in range(self._shards)]
        if check:
            self._check(paths)
        files = [find_tokens(str(path)) for path in paths]
        self.work.deliver(paths[0] if self.shard_tokens is None else paths[0].parent)
        place = given if self.shard_tokens is None else os.path.join(given, f"tokens-*{ENDING}")
        return WrittenTokens(
            out,
            (out,) if self.shard_tokens is None else tuple(out / path.name for path in paths),
            sum(file.token_count for file in files),
            sum(file.document_count or 0 for file in files),
            sum(file.size for file in files),
            resumed,
            len(self.loader.faults) + self.loader.faults.dropped,
            line=f"loader = feedline.Loader(feedline.text.TokenDataset({place!r}, block=2048), {loader_options()})",
        )

    def _resume(self) -> State | Literal["finished"] | None:
        """Continue the files of an interrupted run; return the loader's state there, None to start."""
        note = self.work.note
        if note is None or self._was_delivered(note):
            return None
        self._shards, self._done = note["shards"], note["done"]
        state: State | Literal["finished"] = note["loader"]
        path = self._path(self._shards)
        try:
            if note["is_full"] and path.exists():
                path.with_name(path.name + LENGTHS).unlink(missing_ok=True)
                self._shards += 1
                self._done += note["writer"]["documents"]
                return state
            self._writer = self._opened(note["writer"])
            self._noted = self._writer.token_count
        except BadState as exc:
            raise PackError(
                f"{self.work.path} was changed after the interruption: {words(exc)}. Run with --restart "
                "(restart=True) to start over."
            ) from exc
        if note["is_full"]:
            self._complete()
        return state

    def _was_delivered(self, note: JsonObject) -> bool:
        """True if the run was killed after it had moved its output, and before it had removed its note."""
        path = self._path(note["shards"])
        places = (path, path.with_name(path.name + UNFINISHED))
        return note["loader"] == "finished" and not any(place.exists() for place in places)

    def _opened(self, resume: dict[str, object] | None = None) -> TokenWriter:
        chosen = self.encoder.tokenizer
        return TokenWriter(
            self._path(self._shards),
            dtype=self.encoder.dtype,
            tokenizer=tokenizer_name(chosen),
            tokenizer_hash=tokenizer_hash(chosen),
            end_token=self.encoder.end_token,
            resume=resume,
        )

    def _write(self, state: State | None) -> None:
        if state is not None:
            self.loader.load_state_dict(state)
        self.report(Stage("tokenizing", self._documents, self.total))
        for tokens, lengths in self.loader:
            if self._writer is None:
                self._writer, self._noted = self._opened(), 0
            self._writer.write_joined(tokens, lengths)
            self.report(Stage("tokenizing", self._documents, self.total))
            count = self._writer.token_count
            if self.shard_tokens is not None and count >= self.shard_tokens:
                self._finish_shard(self.loader.state_dict())
            elif count - self._noted >= CHECKPOINT_TOKENS:
                self._write_note(self.loader.state_dict(), is_full=False)
        if self._documents == 0:
            raise PackError("The dataset has no texts, so there is nothing to write.")
        self._finish_shard("finished")

    def _finish_shard(self, state: object) -> None:
        if self._writer is None:  # the last shard was full with the last text
            return
        self._write_note(state, is_full=True)
        self._complete()

    def _complete(self) -> None:
        assert self._writer is not None
        writer, self._writer = self._writer, None
        writer.finish()
        self._shards += 1
        self._done += writer.document_count

    def _write_note(self, state: object, *, is_full: bool) -> None:
        assert self._writer is not None
        checkpoint = self._writer.checkpoint()
        sync(self._writer.path.parent)
        self._noted = self._writer.token_count
        self.work.write_note(
            {"shards": self._shards, "done": self._done, "writer": checkpoint, "is_full": is_full, "loader": state}
        )

    def _check(self, paths: Sequence[Path]) -> None:
        """Read everything again and compare checksums. Raises PackError: they differ."""
        sizes = [path.stat().st_size for path in paths]
        for number, path in enumerate(paths):
            before = sum(sizes[:number])
            try:
                verify(path, report=partial(self._report_check, before, sum(sizes)))
            except CorruptSource as exc:
                raise PackError(
                    f"The data read back is not what was written: {words(exc)}. The disk or memory of this machine may "
                    f"be faulty. Run again with --restart (restart=True): the files are in {self.work.path}."
                ) from exc

    def _report_check(self, before: int, total: int, done: int) -> None:
        self.report(Stage("checking, MiB", (before + done) >> 20, total >> 20))

    def close(self) -> None:
        """Close the file being written, without completing it."""
        if self._writer is not None:
            self._writer.close()
