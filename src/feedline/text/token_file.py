"""The format of token files: what their bytes mean, and which files are complete.

A token file stores tokens and where documents begin. All numbers are little-endian:

    0       header, 4096 bytes: `_HEADER`, then JSON with the name and hash of the tokenizer, then zeros
    4096    tokens, uint16 or uint32; then zeros up to a multiple of 8
            document offsets, int64: the first token of each document, and the number of tokens
            checksums, uint32: CRC-32 of each block of `BLOCK_BYTES` bytes of tokens

The header has a checksum of itself and one of all that follows the tokens. So two files with the same header hold the
same tokens. Opening a file reads the header and compares the file's size; `verify` reads everything.

A file of bare tokens, as `numpy.ndarray.tofile` writes it, has no header. Only the user knows its type.
"""

from __future__ import annotations

import json
import os
import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, BinaryIO

import numpy as np
from numpy.typing import NDArray

from feedline.datasets.framework.checksums import damaged
from feedline.datasets.framework.paths import checked_path
from feedline.errors import BadOption, CorruptSource, SourceChanged, SourceError
from feedline.system.failures import words

if TYPE_CHECKING:
    from feedline.datasets.framework.remote_files import RemoteFile

HEADER_BYTES = 4096
"""The tokens begin here: at a page, so that mapped tokens are aligned."""
BLOCK_BYTES = 16 << 20
"""Bytes of tokens that share a checksum."""
MAGIC = b"\x93FEEDTOK"
VERSION = 1
ENDING = ".bin"

_HEADER = struct.Struct("<8sIIIIQQQqII")
"""Magic, version, checksum of the header (taken with a zero in its place), bytes of a token, bytes of a block; numbers
of tokens and documents, file size; end-of-document token, or -1; checksum of what follows the tokens; size of the JSON.
"""
_CHECKSUM_AT = 12
_PIECE = 1 << 24
_TYPES: dict[int, np.dtype[np.unsignedinteger]] = {2: np.dtype("<u2"), 4: np.dtype("<u4")}
_AGAIN = "Get another copy, or write it again."


@dataclass(frozen=True)
class TokenFile:
    """A token file, as its header describes it; `TokenDataset.files` and `verify` return it.

    Example:
        >>> import tempfile
        >>> from feedline.text import TokenDataset, TokenWriter
        >>> path = f"{tempfile.mkdtemp()}/tokens.bin"
        >>> with TokenWriter(path, dtype="uint16", tokenizer="bytes", end_token=0) as writer:
        ...     writer.write([[5, 6, 0], [8, 0]])
        >>> (file,) = TokenDataset(path).files
        >>> file.token_count, file.document_count, file.dtype, file.tokenizer, file.end_token
        (5, 2, dtype('uint16'), 'bytes', 0)
    """

    path: str
    """Absolute; for a remote file, its address without secrets."""
    token_bytes: int
    """2 for uint16, 4 for uint32."""
    token_count: int
    document_count: int | None
    """None for a file of bare tokens, which has no document boundaries."""
    end_token: int | None = None
    """The token that ends each document, if there is one."""
    tokenizer: str = ""
    """Name of the tokenizer; "" if it is unknown."""
    tokenizer_hash: str = ""
    """Digest of the tokenizer; "" if it is unknown."""
    tail_sum: int = 0
    """Checksum of the document offsets and the block checksums."""
    remote: RemoteFile | None = field(default=None, repr=False)
    """Where a remote file is, and in which version; None for a local file."""

    @property
    def dtype(self) -> np.dtype[np.unsignedinteger]:
        """The type of its tokens."""
        return _TYPES[self.token_bytes]

    @property
    def has_header(self) -> bool:
        """False for a file of bare tokens."""
        return self.document_count is not None

    @property
    def tokens_at(self) -> int:
        """The byte at which tokens begin."""
        return HEADER_BYTES if self.has_header else 0

    @property
    def tokens_end(self) -> int:
        """The byte after the last token."""
        return self.tokens_at + self.token_bytes * self.token_count

    @property
    def offsets_at(self) -> int:
        """The byte at which document offsets begin."""
        return -(-self.tokens_end // 8) * 8

    @property
    def sums_at(self) -> int:
        """The byte at which checksums begin."""
        return self.offsets_at + 8 * ((self.document_count or 0) + 1)

    @property
    def size(self) -> int:
        """The size of the whole file in bytes."""
        if not self.has_header:
            return self.tokens_end
        return self.sums_at + 4 * -(-self.token_bytes * self.token_count // BLOCK_BYTES)

    def header(self) -> bytes:
        """Return the header of the file. Raises BadOption: the names in it are too long."""
        names = json.dumps({"tokenizer": self.tokenizer, "hash": self.tokenizer_hash}).encode()
        if _HEADER.size + len(names) > HEADER_BYTES:
            raise BadOption(f"The tokenizer's name is too long for a token file: {self.tokenizer[:80]!r}...")
        end = -1 if self.end_token is None else self.end_token
        counts = (self.token_count, self.document_count or 0, self.size)
        fields = _HEADER.pack(MAGIC, VERSION, 0, self.token_bytes, BLOCK_BYTES, *counts, end, self.tail_sum, len(names))
        return _sealed((fields + names).ljust(HEADER_BYTES, b"\0"))

    def check_unchanged(self) -> None:
        """Check that the file is still the same. Raises SourceChanged: it is another one; SourceError: it is gone."""
        found = find_tokens(self.path, self.dtype if not self.has_header else None)
        if found != self:
            raise SourceChanged(
                f"{self.path} has changed since the dataset was created: it had {self.token_count:,} tokens, and is "
                f"now another file, of {found.token_count:,} tokens. Create the dataset again."
            )


def find_tokens(path: str, raw_dtype: object = None) -> TokenFile:
    """Read the header of a token file, and check the file's size.

    Args:
        path: the file.
        raw_dtype: "uint16" or "uint32": accept a file of bare tokens of this type.

    Raises:
        SourceError: the file cannot be opened.
        CorruptSource: the file is damaged or incomplete.
        BadOption: the file has no header, and `raw_dtype` is not given.
    """
    with opened(path) as file:
        size = os.fstat(file.fileno()).st_size
        start = file.read(HEADER_BYTES)
    return described(path, size, start, raw_dtype)


def described(path: str, size: int, start: bytes, raw_dtype: object = None) -> TokenFile:
    """Return what the first `HEADER_BYTES` bytes of a file describe, as `find_tokens` does."""
    if start[: len(MAGIC)] != MAGIC:
        return _bare(path, size, start, raw_dtype)
    found = _described(path, start)
    if size != found.size:
        how = "is truncated" if size < found.size else "has extra bytes at its end"
        raise CorruptSource(
            f"{path} {how}: {found.token_count:,} tokens and {found.document_count:,} documents make "
            f"{found.size:,} bytes, but the file has {size:,}. The copy or download was probably interrupted. {_AGAIN}"
        )
    return found


def opened(path: str) -> BinaryIO:
    """Open a file for reading. Raises SourceError: that is impossible."""
    try:
        return open(path, "rb")
    except FileNotFoundError as exc:
        raise SourceError(f"There is no file {path}.") from exc
    except OSError as exc:
        raise SourceError(f"{path} cannot be opened: {words(exc)}.") from exc


def token_bytes_of(dtype: object, option: str) -> int:
    """Return the bytes of a token of this type. Raises BadOption: it is neither uint16 nor uint32."""
    try:
        found = np.dtype(dtype)  # type: ignore[call-overload]  # any value from the user
    except TypeError:
        found = None
    if found is None or found.kind != "u" or found.itemsize not in _TYPES:
        raise BadOption(f"{option}={dtype!r} is not a type for tokens. Use 'uint16' or 'uint32'.")
    return int(found.itemsize)


def _bare(path: str, size: int, start: bytes, raw_dtype: object) -> TokenFile:
    if raw_dtype is None:
        guess = "it is empty" if not start else f"it begins with {start[:8]!r}"
        raise BadOption(
            f"{path} is not a token file that feedline wrote: {guess}. If it contains bare tokens, as numpy's tofile "
            "writes them, pass their type: raw_dtype='uint16'. If feedline wrote it, its beginning is damaged."
        )
    token_bytes = token_bytes_of(raw_dtype, "raw_dtype")
    if size % token_bytes:
        raise CorruptSource(
            f"{path} has {size:,} bytes, which is not a multiple of the {token_bytes} bytes of a token. The file is "
            "truncated, or its tokens are of another type."
        )
    return TokenFile(path, token_bytes, size // token_bytes, None)


def _described(path: str, start: bytes) -> TokenFile:
    if len(start) < HEADER_BYTES:
        raise CorruptSource(f"{path} is truncated: it ends after {len(start):,} bytes, within its header. {_AGAIN}")
    _, version, checksum, token_bytes, block_bytes, tokens, documents, _, end, tail_sum, length = _HEADER.unpack_from(
        start
    )
    if version != VERSION:
        raise CorruptSource(
            f"{path} is a token file of version {version}, but this feedline reads version {VERSION}. Install the "
            "feedline that wrote it, or write it again."
        )
    if zlib.crc32(_unsealed(start)) != checksum:
        raise damaged(f"The header of {path}")
    try:
        names = json.loads(start[_HEADER.size : _HEADER.size + length])
        tokenizer, hash_ = str(names["tokenizer"]), str(names["hash"])
    except (ValueError, KeyError, TypeError, RecursionError) as exc:
        raise CorruptSource(f"The header of {path} is damaged: {words(exc)}. {_AGAIN}") from exc
    if token_bytes not in _TYPES or block_bytes != BLOCK_BYTES:
        raise CorruptSource(
            f"The header of {path} is damaged: it has tokens of {token_bytes} bytes and blocks of {block_bytes} "
            f"bytes. {_AGAIN}"
        )
    return TokenFile(path, token_bytes, tokens, documents, None if end < 0 else end, tokenizer, hash_, tail_sum)


def _unsealed(header: bytes) -> bytes:
    return header[:_CHECKSUM_AT] + bytes(4) + header[_CHECKSUM_AT + 4 :]


def _sealed(header: bytes) -> bytes:
    """Return a header with its checksum."""
    return header[:_CHECKSUM_AT] + struct.pack("<I", zlib.crc32(header)) + header[_CHECKSUM_AT + 4 :]


def verify(path: str | os.PathLike[str], *, report: Callable[[int], object] | None = None) -> TokenFile:
    """Read a whole token file and compare all checksums.

    Reading samples does not compare checksums, since that would cost more than reading. Call this after a copy or a
    download.

    Args:
        path: a token file that feedline wrote.
        report: called from time to time with the number of bytes read so far.

    Returns:
        The content of the header: `token_count`, `document_count`, `dtype`, `end_token`, `tokenizer`, `tokenizer_hash`.

    Raises:
        SourceError: the file cannot be read.
        CorruptSource: the file is damaged; the message names the first damaged tokens.
        BadOption: the file has no header, and so no checksums.

    Example:
        >>> import tempfile
        >>> from feedline.text import TokenWriter, verify
        >>> path = f"{tempfile.mkdtemp()}/tokens.bin"
        >>> with TokenWriter(path, dtype="uint16") as writer:
        ...     writer.write([[5, 6, 7], [8]])
        >>> verify(path).token_count
        4
    """
    found = find_tokens(os.path.abspath(checked_path(path)))
    done = 0
    with opened(found.path) as file:
        file.seek(found.offsets_at)
        tail = file.read()
        offsets_in(found, tail)
        sums = np.frombuffer(tail, "<u4", offset=found.sums_at - found.offsets_at)
        file.seek(found.tokens_at)
        for number, expected in enumerate(sums.tolist()):
            content = file.read(min(BLOCK_BYTES, found.tokens_end - file.tell()))
            if zlib.crc32(content) != expected:
                first = number * BLOCK_BYTES // found.token_bytes
                last = min(found.token_count, first + BLOCK_BYTES // found.token_bytes) - 1
                raise damaged(f"{found.path}, in tokens {first:,} to {last:,},")
            done += len(content)
            if report is not None:
                report(done)
    return found


def offsets_in(file: TokenFile, tail: bytes) -> NDArray[np.int64]:
    """Return the document offsets from all that follows the tokens of a file. Raises CorruptSource: it is damaged."""
    if len(tail) != file.size - file.offsets_at or zlib.crc32(tail) != file.tail_sum:
        raise damaged(f"The list of documents of {file.path}, or its checksums,")
    offsets = np.frombuffer(tail, "<i8", count=(file.document_count or 0) + 1)
    if offsets[0] != 0 or offsets[-1] != file.token_count or (np.diff(offsets) < 0).any():
        raise CorruptSource(f"The list of documents of {file.path} is not in order. {_AGAIN}")
    return offsets
