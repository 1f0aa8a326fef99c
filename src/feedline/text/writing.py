"""Write a token file, from its first document to its last; checkpoints allow a killed writer to continue."""

from __future__ import annotations

import functools
import os
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from feedline.datasets.framework.paths import local_output
from feedline.errors import BadOption, BadState
from feedline.system.files import sync
from feedline.text.token_file import BLOCK_BYTES, HEADER_BYTES, MAGIC, TokenFile, token_bytes_of
from feedline.types import JsonObject

UNFINISHED = ".unfinished"
LENGTHS = ".lengths"
"""Endings of the files that a writer fills: tokens, and the length of each document."""


def _is_ours(place: Path) -> bool:
    """True if a writer that was interrupted left this file, or there is none."""
    if not place.exists() and not place.is_symlink():
        return True
    if place.is_symlink() or not place.is_file():
        return False
    with open(place, "rb") as file:
        return file.read(len(MAGIC)) in (b"", MAGIC)


@functools.cache
def _largest(dtype: np.dtype[np.integer]) -> int:
    return int(np.iinfo(dtype).max)


def checked_tokens(tokens: object, dtype: np.dtype[np.integer], what: str) -> NDArray[np.integer]:
    """Return tokens as an array. Raises BadOption: they are not whole numbers, or do not fit into the type."""
    array = np.asarray(tokens)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise BadOption(f"{what} is not a list of token ids, but {type(tokens).__name__} {tokens!r:.60}.")
    if array.size and array.dtype != dtype:
        low, high = int(array.min()), int(array.max())
        if low < 0 or high > _largest(dtype):
            wrong = low if low < 0 else high
            larger = "" if low < 0 or dtype.itemsize > 2 or high >= 1 << 32 else " Use dtype='uint32'."
            raise BadOption(f"{what} has the token id {wrong}, which {dtype} cannot hold.{larger}")
    return array.astype(dtype, copy=False)


@dataclass
class _Sums:
    """Checksums of the blocks written so far; like `BlockSums`, but it can be saved and continued."""

    whole: list[int]
    current: int = 0
    held: int = 0

    def add(self, data: memoryview) -> None:
        while len(data):
            piece = data[: BLOCK_BYTES - self.held]
            self.current = zlib.crc32(piece, self.current)
            self.held += len(piece)
            if self.held == BLOCK_BYTES:
                self.whole.append(self.current)
                self.current = self.held = 0
            data = data[len(piece) :]

    def all(self) -> NDArray[np.uint32]:
        return np.array([*self.whole, *([self.current] if self.held else [])], "<u4")


class TokenWriter:
    """Writes a token file; a context manager.

    The file gets its name when it is complete and flushed to the disk: at the end of the `with` block, unless that
    raised an exception. Until then it is called PATH.unfinished, beside PATH.lengths. An existing file is replaced.

    Args:
        path: the file; its usual suffix is `.bin`.
        dtype: "uint16", for vocabularies of up to 65,536 tokens, or "uint32".
        tokenizer: name of the tokenizer, to be stored.
        tokenizer_hash: a digest of it; files with different digests are not read together.
        end_token: the token that ends each document, to be stored. It is not appended.
        resume: what `checkpoint()` returned, to continue a file after it.

    Raises:
        BadOption: an option has an invalid value, a token does not fit into the type, or another program's file has
            one of the names that unfinished files get.
        BadState: the file is shorter than at the checkpoint.

    Example:
        >>> import tempfile
        >>> from feedline.text import TokenDataset, TokenWriter
        >>> path = f"{tempfile.mkdtemp()}/tokens.bin"
        >>> with TokenWriter(path, dtype="uint16", tokenizer="bytes") as writer:
        ...     writer.write([list(b"To be"), list(b"or not to be")])
        >>> bytes(TokenDataset(path, block=5, labels=None)[0].tolist())
        b'To be'
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        dtype: object,
        tokenizer: str = "",
        tokenizer_hash: str = "",
        end_token: int | None = None,
        resume: JsonObject | None = None,
    ) -> None:
        self.path = local_output("path", path)
        token_bytes = token_bytes_of(dtype, "dtype")
        self._file = TokenFile(str(self.path), token_bytes, 0, 0, end_token, tokenizer, tokenizer_hash)
        self._file.header()  # raises before anything is written
        self._dtype = self._file.dtype
        self._sums = _Sums([])
        self.token_count = 0
        self.document_count = 0
        self._tokens, self._lengths = self._begin(resume)

    @property
    def _places(self) -> tuple[Path, Path]:
        return tuple(self.path.with_name(self.path.name + ending) for ending in (UNFINISHED, LENGTHS))  # type: ignore[return-value]

    def _begin(self, resume: JsonObject | None) -> tuple[BinaryIO, BinaryIO]:
        if resume is None:
            for place in self._places:
                if not _is_ours(place):
                    raise BadOption(
                        f"{place} is in the way: no TokenWriter wrote it. Rename it, or choose another path."
                    )
            tokens, lengths = (open(place, "w+b") for place in self._places)  # noqa: SIM115  (closed by `close`)
            tokens.write(MAGIC.ljust(HEADER_BYTES, b"\0"))
            lengths.write(MAGIC)
            return tokens, lengths
        self.token_count, self.document_count = int(resume["tokens"]), int(resume["documents"])
        self._sums = _Sums(list(resume["sums"]), int(resume["sum"]), int(resume["held"]))
        sizes = HEADER_BYTES + self._dtype.itemsize * self.token_count, len(MAGIC) + 8 * self.document_count
        for place, size in zip(self._places, sizes, strict=True):
            found = place.stat().st_size if place.exists() and _is_ours(place) else 0
            if found < size:
                raise BadState(f"{place} has {found:,} bytes, but had {size:,} at the checkpoint. Start over.")
        tokens, lengths = (open(place, "r+b") for place in self._places)  # noqa: SIM115  (closed by `close`)
        for file, size in ((tokens, sizes[0]), (lengths, sizes[1])):
            file.truncate(size)
            file.seek(size)
        return tokens, lengths

    def write(self, documents: Iterable[object]) -> None:
        """Append documents, each a list or array of token ids.

        Raises BadOption: a token does not fit into the type; then none of these documents is appended.
        """
        arrays = [
            checked_tokens(tokens, self._dtype, f"Document {number}")
            for number, tokens in enumerate(documents, self.document_count)
        ]
        if arrays:
            self.write_joined(np.concatenate(arrays), [len(array) for array in arrays])

    def write_joined(self, tokens: NDArray[np.integer], lengths: Sequence[int] | NDArray[np.int64]) -> None:
        """Append documents that are one array of tokens, given the length of each."""
        counts = np.asarray(lengths, "<i8")
        array = np.ascontiguousarray(checked_tokens(tokens, self._dtype, "The array"), self._dtype)
        if counts.sum() != len(array):
            raise BadOption(f"The lengths add up to {counts.sum()} tokens, but there are {len(array)}.")
        data = memoryview(array.view(np.uint8).data)
        self._tokens.write(data)
        self._lengths.write(counts.tobytes())
        self._sums.add(data)
        self.token_count += len(array)
        self.document_count += len(counts)

    def checkpoint(self) -> dict[str, object]:
        """Flush everything to the disk; return what `resume=` takes, in values that JSON keeps."""
        for file in (self._tokens, self._lengths):
            file.flush()
            os.fsync(file.fileno())
        sums = self._sums
        return {
            "tokens": self.token_count,
            "documents": self.document_count,
            "sums": list(sums.whole),
            "sum": sums.current,
            "held": sums.held,
        }

    def finish(self) -> TokenFile:
        """Complete the file and give it its name; return what its header says."""
        file, offsets = self._tokens, np.zeros(self.document_count + 1, "<i8")
        self._lengths.seek(len(MAGIC))
        np.cumsum(np.frombuffer(self._lengths.read(), "<i8"), out=offsets[1:])
        tail = offsets.tobytes() + self._sums.all().tobytes()
        found = TokenFile(
            self._file.path,
            self._file.token_bytes,
            self.token_count,
            self.document_count,
            self._file.end_token,
            self._file.tokenizer,
            self._file.tokenizer_hash,
            zlib.crc32(tail),
        )
        file.write(bytes(found.offsets_at - found.tokens_end))
        file.write(tail)
        file.seek(0)
        file.write(found.header())
        file.flush()
        os.fsync(file.fileno())
        self.close()
        unfinished, lengths = self._places
        os.replace(unfinished, self.path)
        lengths.unlink()
        sync(self.path.parent)
        return found

    def close(self) -> None:
        """Close the unfinished file without completing it. May be called twice."""
        self._tokens.close()
        self._lengths.close()

    def __enter__(self) -> TokenWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.finish()
            return
        self.close()
        for place in self._places:
            place.unlink(missing_ok=True)

    def __repr__(self) -> str:
        return f"TokenWriter({str(self.path)!r}, {self.token_count:,} tokens in {self.document_count:,} documents)"
