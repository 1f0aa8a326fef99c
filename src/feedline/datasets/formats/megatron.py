"""Tokens in a pair of .bin and .idx files, as Megatron-LM writes them."""

from __future__ import annotations

import functools
import os
import struct

import numpy as np
from numpy.typing import NDArray

from feedline.abc import memory
from feedline.abc.source import ColumnSource
from feedline.datasets.framework.paths import checked_path
from feedline.datasets.framework.source import Indices, Source, Transform, has_own_samples
from feedline.datasets.storage.mapped_file import MappedFile
from feedline.errors import BadOption, CorruptSource, SourceChanged, SourceError
from feedline.system.handle import Handle
from feedline.system.sizes import check_size

MAGIC = b"MMIDIDX\x00\x00"
"""The beginning of an .idx file."""
_HEADER = struct.Struct("<9sQBQQ")
"""Magic, version, code of the token type, number of sequences, number of document boundaries."""
_DTYPES = {1: "<u1", 2: "<i1", 3: "<i2", 4: "<i4", 5: "<i8", 6: "<f8", 7: "<f4", 8: "<u2"}
_AGAIN = "Write or copy both files again."


class _Pair:
    """Both files, mapped into memory. Raises CorruptSource: they are cut off, or do not belong together."""

    def __init__(self, path: str, samples: str) -> None:
        self.files = index, tokens = MappedFile(f"{path}.idx"), MappedFile(f"{path}.bin")
        self._name = name = index.path
        header = index.array(np.uint8, min(_HEADER.size, index.size)).tobytes()
        if not header.startswith(MAGIC):
            raise CorruptSource(
                f"{name} does not begin like an index of Megatron-LM. Older versions wrote another format "
                "(--dataset-impl lazy or cached), which feedline does not read: preprocess the data with mmap."
            )
        check_size(name, _HEADER.size, held=index.size)
        _, version, code, sequences, boundaries = _HEADER.unpack(header)
        if version != 1 or code not in _DTYPES:
            raise CorruptSource(f"{name} has version {version} and token type {code}, which feedline does not know.")
        end = _HEADER.size + 12 * sequences + 8 * boundaries
        check_size(name, end, held=index.size)
        if index.size not in (end, end + sequences):  # one more byte per sequence in multimodal datasets
            raise CorruptSource(f"{name} has {index.size} bytes, but its header declares {end}. {_AGAIN}")
        self.dtype = np.dtype(_DTYPES[code])
        self._sizes = index.array(np.dtype("<i4"), sequences, _HEADER.size)
        self._pointers = index.array(np.dtype("<i8"), sequences, _HEADER.size + 4 * sequences)
        documents = index.array(np.dtype("<i8"), boundaries, _HEADER.size + 12 * sequences)
        if boundaries and (documents[0] != 0 or documents[-1] != sequences):
            raise CorruptSource(f"The documents in {name} do not cover its {sequences} sequences. {_AGAIN}")
        last = int(self._pointers[-1]) + int(self._sizes[-1]) * self.dtype.itemsize if sequences else 0
        if last != tokens.size:
            raise CorruptSource(
                f"{tokens.path} has {tokens.size} bytes, but its index declares {last}: it is cut off, or belongs to "
                f"another index. {_AGAIN}"
            )
        self.tokens = tokens.array(self.dtype, tokens.size // self.dtype.itemsize)
        self._documents = documents if samples == "documents" else None
        self.count = sequences if self._documents is None else max(0, boundaries - 1)

    def spans(self, rows: Indices) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return where samples begin, in tokens, and how many tokens they have.

        Raises CorruptSource: the index points outside of the files.
        """
        first, last = rows, rows + 1
        if self._documents is not None:
            first, last = self._documents[rows], self._documents[rows + 1]
            if ((first < 0) | (first > last) | (last > len(self._sizes))).any():
                raise CorruptSource(f"A document in {self._name} has sequences that do not exist. {_AGAIN}")
        starts, lengths = np.zeros(len(rows), np.int64), np.zeros(len(rows), np.int64)
        full, item = first < last, self.dtype.itemsize
        first, last = first[full], last[full] - 1
        begins = self._pointers[first]
        bytes_ = self._pointers[last] - begins + self._sizes[last].astype(np.int64) * item
        inside = (begins >= 0) & (bytes_ >= 0) & (begins <= self.tokens.nbytes - bytes_)
        if not (inside & (begins % item == 0) & (bytes_ % item == 0)).all():
            raise CorruptSource(f"A sequence in {self._name} lies outside of the tokens. {_AGAIN}")
        starts[full], lengths[full] = begins // item, bytes_ // item
        return starts, lengths

    def close(self) -> None:
        for file in self.files:
            file.close()


class MegatronDataset(Source, ColumnSource):
    """Token arrays in a pair of `.bin` and `.idx` files, which `preprocess_data.py` of Megatron-LM writes.

    Both files are mapped into memory, by each process itself. Samples are one-dimensional arrays. Samples of one length
    are copied straight into the batch; to batch samples of different lengths, pad or pack them with a collate function.

    Args:
        path: either of the two files, or their common path without the suffix.
        samples: "documents", or "sequences" for the parts of documents, such as sentences. By default the files have
            one sequence per document.
        transform: applied to each sample.

    Raises:
        SourceError: a file is missing.
        CorruptSource: a file is cut off, or the two do not belong together.
        BadOption: an option is invalid.

    Example:
        >>> import struct, tempfile
        >>> path = f"{tempfile.mkdtemp()}/train"
        >>> documents = [np.array([5, 6, 7], np.uint16), np.array([8, 9], np.uint16)]
        >>> np.concatenate(documents).tofile(f"{path}.bin")
        >>> with open(f"{path}.idx", "wb") as file:
        ...     _ = file.write(struct.pack("<9sQBQQ", b"MMIDIDX", 1, 8, 2, 3))
        ...     _ = file.write(struct.pack("<ii", 3, 2) + struct.pack("<qq", 0, 6) + struct.pack("<qqq", 0, 1, 2))
        >>> dataset = MegatronDataset(path)
        >>> dataset
        MegatronDataset(2 samples of uint16[any length])
        >>> dataset[1], dataset.lengths
        (array([8, 9], dtype=uint16), array([3, 2]))
        >>> dataset.close()
    """

    _lazy = ("_count", "_dtype")

    def __init__(
        self, path: str | os.PathLike[str], *, samples: str = "documents", transform: Transform | None = None
    ) -> None:
        super().__init__(transform)
        if samples not in ("documents", "sequences"):
            raise BadOption(f'samples={samples!r} is neither "documents" nor "sequences".')
        given = checked_path(path)
        self.path = given[:-4] if given.endswith((".idx", ".bin")) else given
        for suffix in (".idx", ".bin"):
            if not os.path.isfile(self.path + suffix):
                raise SourceError(f"There is no file {self.path}{suffix}. Megatron-LM writes .idx and .bin together.")
        self.samples = samples
        self._count: int | None = None
        self._dtype: np.dtype[np.generic] | None = None
        self._handle: Handle[_Pair] = Handle(functools.partial(_Pair, os.path.abspath(self.path), samples), _Pair.close)

    def _pair(self) -> _Pair:
        """Return the files of this process, after checking that they are unchanged."""
        pair = self._handle.get()
        for file in pair.files:
            file.check()
        if self._count is None:
            self._count, self._dtype = pair.count, pair.dtype
        elif (pair.count, pair.dtype) != (self._count, self._dtype):
            raise SourceChanged(
                f"{self.path}.idx has changed since this dataset first read it: it had {self._count} {self.samples} of "
                f"{self._dtype} and now has {pair.count} of {pair.dtype}. Create the dataset again."
            )
        return pair

    def __len__(self) -> int:
        if self._count is None:
            self._pair()
        assert self._count is not None  # set by _pair
        return self._count

    @property
    def lengths(self) -> NDArray[np.int64]:
        """The number of tokens in each sample, for samplers that batch samples of similar length."""
        return self._pair().spans(np.arange(len(self)))[1]

    def _read(self, indices: Indices) -> list[object]:
        pair = self._pair()
        starts, lengths = pair.spans(indices)
        spans = zip(starts.tolist(), lengths.tolist(), strict=True)
        return [pair.tokens[start : start + length].copy() for start, length in spans]

    def read_columns(self, indices: Indices) -> NDArray[np.generic] | None:
        checked = self._checked(indices)
        if self.transform is not None or has_own_samples(type(self)) or not len(checked):
            return None
        pair = self._pair()
        starts, lengths = pair.spans(checked)
        length = int(lengths[0])
        if (lengths != length).any():
            return None
        batch = memory.empty((len(starts), length), pair.dtype)
        for row, start in enumerate(starts.tolist()):
            batch[row] = pair.tokens[start : start + length]
        return batch

    def close(self) -> None:
        """Close both files in this process. The next read opens them again."""
        self._handle.close()

    def _stored_in(self) -> tuple[str, str]:
        return f"{self.path}.idx", f"{self.path}.bin"

    def _form(self) -> str:
        self._pair()
        return f"{self._dtype}[any length]"
