"""Blocks of tokens as a dataset: what language models are trained on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from feedline.abc.description import Described, Description
from feedline.datasets.framework import upcoming
from feedline.datasets.framework.block_stream import BlockStream
from feedline.datasets.framework.form import Form
from feedline.datasets.framework.paths import Paths
from feedline.datasets.framework.source import Empty, Indices, TableSource, Transform
from feedline.datasets.storage import disk_cache
from feedline.datasets.storage.remote import Remote, checked_remote
from feedline.errors import BadOption
from feedline.system.options import checked_count, checked_flag
from feedline.system.sizes import byte_count
from feedline.text.documents import TokenDocuments
from feedline.text.mapped import Tokens
from feedline.text.sequence import Edges, TokenSequence
from feedline.text.token_file import TokenFile

CACHE_BYTES = 128 << 20
"""Default limit for pieces of remote files in memory, per process: twice what a `BlockSampler` reads by default."""
IGNORED = -100
"""The label that torch's cross-entropy leaves out by default."""

Labels = Literal["shifted", "same"] | None
Positions = bool | Literal["document"]


class TokenDataset(TableSource, Described):
    """Blocks of tokens from token files, as a map-style dataset.

    All files are one sequence of tokens. Sample i is the `block` tokens from token i * `stride` on. Local files are
    mapped into memory: any sample costs the same, however large the files are, and processes share the memory. The
    blocks of a batch from remote files are requested at the same time. With feedline's loader and the default collate
    function, a batch is read in one vectorised step. `shuffle=True` then shuffles blocks without a list of them, so
    that 10^12 tokens start and resume as quickly as a thousand.

    A sample is a dict with `tokens`, and with `labels`, `positions` and `segment_ids` if you ask for them. With
    `labels=None` and nothing else, it is the array of tokens itself.

    Args:
        paths: token files, as `feedline pack --tokens` or `write_tokens` write them: a file, a folder (all `.bin` files
            below it), a pattern such as `"tokens-*.bin"`, an address (`s3://`, `gs://`, `https://`, or another that
            fsspec reads; patterns except for `https://`), or a list of these.
        block: tokens in a sample.
        stride: distance between the first tokens of two samples; `block` by default, so that samples do not overlap.
            Tokens after the last whole block are left out.
        labels: "shifted": the label of a token is the token after it. "same": labels are the tokens themselves, for
            models that shift labels on their own, as those of Hugging Face do. None: no labels.
        mask_crossing: True to make a label -100, which torch's cross-entropy ignores, where a model would have to
            predict the first token of a document from the document before it.
        positions: True for `positions` that start at 0 in each block and at each document in it. "document" for the
            place of each token in its document, also if the document began before the block.
        segment_ids: True for `segment_ids`: 1 for tokens of the first document in the block, 2 for the next, and so on;
            `packing.cu_seqlens` turns those of a batch into the lengths that variable-length attention takes.
        dtype: the type of tokens and labels; None for that of the files.
        raw_dtype: "uint16" or "uint32", to also read files of bare tokens of this type, which have no header.
        end_token: the token that ends a document, to find documents in files of bare tokens.
        transform: applied to each sample; batches are then made sample by sample.
        cache_bytes: how much of remote files each process keeps in memory: pieces of 2 MB of which many blocks are
            read. If you ask for document boundaries, they take another 8 bytes for each document.
        remote: how remote files are read.

    Raises:
        BadOption: an option has an invalid value, a file has no header, or files are of different tokenizers.
        SourceError: a file does not exist.
        CorruptSource: a file is damaged or truncated.
        SourceChanged: a file was replaced; raised at first use in a process, or at any time if the file is remote.

    Example:
        >>> import tempfile
        >>> from feedline.text import TokenDataset, TokenWriter
        >>> path = f"{tempfile.mkdtemp()}/tokens.bin"
        >>> with TokenWriter(path, dtype="uint16") as writer:
        ...     writer.write([[5, 6, 7], [8, 9], [10, 11, 12, 13]])
        >>> dataset = TokenDataset(path, block=4, segment_ids=True)
        >>> dataset
        TokenDataset(2 samples of {'tokens': int64[4], 'labels': int64[4], 'segment_ids': int32[4]})
        >>> {name: values.tolist() for name, values in dataset[0].items()}
        {'tokens': [5, 6, 7, 8], 'labels': [6, 7, 8, 9], 'segment_ids': [1, 1, 1, 2]}
        >>> dataset.documents[1].tolist(), dataset.documents.lengths.tolist()
        ([8, 9], [3, 2, 4])
    """

    _groups_at_once = upcoming.MOST
    """Pieces that a stream reads ahead at the same time."""

    def __init__(
        self,
        paths: Paths,
        block: int = 2048,
        *,
        stride: int | None = None,
        labels: Labels = "shifted",
        mask_crossing: bool = False,
        positions: Positions = False,
        segment_ids: bool = False,
        dtype: object = np.int64,
        raw_dtype: object = None,
        end_token: int | None = None,
        transform: Transform | None = None,
        cache_bytes: int | str = CACHE_BYTES,
        remote: Remote | None = None,
    ) -> None:
        super().__init__(transform)
        self.block = checked_count("block", block, 1)
        self.stride = self.block if stride is None else checked_count("stride", stride, 1)
        if labels not in ("shifted", "same", None):
            raise BadOption(f"labels={labels!r} is not 'shifted', 'same' or None.")
        self.labels = labels
        self.mask_crossing = checked_flag("mask_crossing", mask_crossing)
        if self.mask_crossing and labels is None:
            raise BadOption("mask_crossing=True masks labels, but with labels=None there are none. Drop one.")
        if not isinstance(positions, bool) and positions != "document":
            raise BadOption(f"positions={positions!r} is not True, False or 'document'.")
        self.positions = positions
        self.segment_ids = checked_flag("segment_ids", segment_ids)
        self.end_token = None if end_token is None else checked_count("end_token", end_token, 0)
        self._width = self.block + (labels == "shifted")
        """Tokens that a sample is made of."""
        self.remote = checked_remote(remote)
        self._sequence = TokenSequence(paths, raw_dtype, self.remote, byte_count("cache_bytes", cache_bytes, least=0))
        self.is_remote = any(file.remote is not None for file in self._sequence.files)
        self.dtype = self._checked_dtype(dtype)
        self._check_documents()
        given = {"labels": labels is not None, "positions": bool(positions), "segment_ids": segment_ids}
        names = ("tokens", *(name for name, is_given in given.items() if is_given))
        self._shape = Form(names, names if len(names) > 1 else None, is_one=len(names) == 1)

    def _checked_dtype(self, dtype: object) -> np.dtype[np.integer]:
        held = self._sequence.dtype
        if dtype is None:
            wanted: np.dtype[np.integer] = held
        else:
            try:
                wanted = np.dtype(dtype)  # type: ignore[call-overload]  # any value from the user
            except TypeError:
                raise BadOption(f"dtype={dtype!r} is not a NumPy type. Pass None for the type of the files.") from None
        if wanted.kind not in "iu" or not wanted.isnative:
            raise BadOption(f"dtype={dtype!r} is not an integer type in the machine's byte order.")
        if wanted.itemsize < held.itemsize:
            raise BadOption(f"dtype={dtype!r} cannot hold all values of {held}, the type of the tokens.")
        if self.mask_crossing and wanted.kind == "u":
            raise BadOption(
                f"mask_crossing=True sets labels to {IGNORED}, which {wanted} cannot hold. Use dtype='int64'."
            )
        return wanted

    def _check_documents(self) -> None:
        needs = self.mask_crossing or self.segment_ids or bool(self.positions)
        if not needs:
            return
        if self._sequence.has_documents:
            self._sequence.load_offsets()
            return
        bare = next(file.path for file in self._sequence.files if not file.has_header)
        if self.positions == "document":
            raise BadOption(f"positions='document' needs the list of documents, which {bare} does not have.")
        if self.end_token is None:
            raise BadOption(
                f"{bare} is a file of bare tokens, which does not list its documents. Pass the token that ends a "
                "document, end_token=50256 for example, or leave out mask_crossing=, positions= and segment_ids=."
            )

    @property
    def files(self) -> tuple[TokenFile, ...]:
        """The content of each file's header."""
        return self._sequence.files

    @property
    def token_count(self) -> int:
        """The number of tokens in all files."""
        return self._sequence.token_count

    @property
    def documents(self) -> TokenDocuments:
        """The documents of all files as a map-style dataset of arrays, for packing them on the fly.

        Raises BadOption: a file of bare tokens does not list its documents.
        """
        return TokenDocuments(self._sequence, self.dtype)

    @property
    def row_group_sizes(self) -> NDArray[np.int64]:
        """How many samples begin in each piece of 2 MB of a file; `feedline.samplers.BlockSampler` needs this."""
        ends = np.minimum(-(-self._sequence.piece_ends() // self.stride), len(self))
        sizes = np.diff(ends, prepend=0)
        return sizes[sizes > 0]

    def stream(self, *, shuffle: bool = False, seed: int = 0, window: int = 8) -> BlockStream:
        """Return an iterable dataset of the same samples, which reads the files piece by piece.

        With `shuffle`, pieces of 2 MB come in a new random order in every epoch, and the samples of each `window` of
        pieces are shuffled together. For remote files that is one request for thousands of samples, where random access
        sends a request for each. Raises BadOption: an option has an invalid value.
        """
        return BlockStream(self, shuffle=shuffle, seed=seed, window=window)

    def _load_range(self, start: int, stop: int) -> None:
        """Read samples that are needed soon into memory."""
        self._sequence.load(start * self.stride, (stop - 1) * self.stride + self._width)

    def _groups_in_memory(self) -> int:
        """Return how many pieces of remote files can be in memory at a time."""
        return self._sequence.cache_bytes // disk_cache.PIECE_BYTES

    def _addresses(self) -> list[str]:
        """Return the paths and addresses of all files, for states of streams."""
        return [file.path for file in self.files]

    def describe(self) -> Description:
        return [{"operator": "TokenDataset", "block": self.block, "stride": self.stride, "size": len(self)}]

    def __len__(self) -> int:
        return max(0, (self._sequence.token_count - self._width) // self.stride + 1)

    def _read_columns(self, indices: Indices, empty: Empty) -> list[object]:
        block, starts = self.block, indices * self.stride
        tokens = self._sequence.windows(starts, self._width)
        # One allocation for tokens and labels: it costs as much as a third of the copying.
        count = 1 if self.labels is None else 2
        shift = self._width - block
        columns = list(empty((count, len(starts), block), self.dtype))
        for place, column in enumerate(columns):
            np.copyto(column, tokens[:, place * shift : place * shift + block])
        if not (self.mask_crossing or self.positions or self.segment_ids):
            return columns
        edges = self._edges(starts, tokens)
        if self.mask_crossing:
            columns[1][edges.rows, edges.places - shift] = IGNORED
        if self.positions or self.segment_ids:
            columns += self._of_documents(starts, edges)
        return columns

    def _of_documents(self, starts: Indices, edges: Edges) -> Iterator[NDArray[np.integer]]:
        segments = edges.segments(self.block)
        if self.positions:
            lead = self._sequence.leads(starts) if self.positions == "document" else None
            yield segments.positions(lead)
        if self.segment_ids:
            yield segments.numbers()

    def _edges(self, starts: Indices, tokens: Tokens) -> Edges:
        if self._sequence.has_documents:
            return self._sequence.edges(starts, self._width)
        rows, places = np.nonzero(tokens[:, :-1] == self.end_token)
        return Edges(rows.astype(np.int64), places.astype(np.int64) + 1, len(starts))

    def close(self) -> None:
        """Close the files. Reading a sample opens them again."""
        self._upcoming.close()
        self._sequence.close()

    def _form(self) -> str:
        types = {"positions": "int64", "segment_ids": "int32"}
        return self._shape.describe([f"{types.get(name, self.dtype)}[{self.block}]" for name in self._shape.names])
