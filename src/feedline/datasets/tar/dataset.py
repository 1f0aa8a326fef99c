"""The two ways to read tar shards, behind one name."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any, Literal, overload

from feedline.datasets.cache_file import Cache
from feedline.datasets.form import Fields
from feedline.datasets.remote.patience import Patience
from feedline.datasets.source import Transform
from feedline.datasets.tar.decoding import Decode, Decoder
from feedline.datasets.tar.form import TarForm
from feedline.datasets.tar.options import Reading
from feedline.datasets.tar.shards import expand
from feedline.datasets.tar.stream import TarStream
from feedline.datasets.tar.table import TarTable
from feedline.errors import BadOption
from feedline.values.sizes import byte_count, most_bytes

Shards = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]


@overload
def TarDataset(
    shards: Shards,
    *,
    mode: Literal["stream"] = ...,
    fields: Fields = ...,
    decode: Decode = ...,
    transform: Transform | None = ...,
    shuffle: bool | None = ...,
    buffer: int | None = ...,
    seed: int | None = ...,
    index: Cache | None = ...,
    read_ahead: int | None = ...,
    retries: int = ...,
    timeout_s: float = ...,
    pickle: bool = ...,
    unique_keys: bool = ...,
    max_field_bytes: int | str | None = ...,
    unsafe_redirects: bool = ...,
    storage_options: Mapping[str, Any] | None = ...,
) -> TarStream: ...


@overload
def TarDataset(
    shards: Shards,
    *,
    mode: Literal["random"],
    fields: Fields = ...,
    decode: Decode = ...,
    transform: Transform | None = ...,
    shuffle: bool | None = ...,
    buffer: int | None = ...,
    seed: int | None = ...,
    index: Cache | None = ...,
    read_ahead: int | None = ...,
    retries: int = ...,
    timeout_s: float = ...,
    pickle: bool = ...,
    unique_keys: bool = ...,
    max_field_bytes: int | str | None = ...,
    unsafe_redirects: bool = ...,
    storage_options: Mapping[str, Any] | None = ...,
) -> TarTable: ...


# A function that is called like a class: which class it is follows from `mode`, as loaders tell map-style and iterable
# datasets apart by their class.
# Any: options of fsspec are its own affair.
def TarDataset(  # noqa: N802
    shards: Shards,
    *,
    mode: Literal["stream", "random"] = "stream",
    fields: Fields = None,
    decode: Decode = True,
    transform: Transform | None = None,
    shuffle: bool | None = None,
    buffer: int | None = None,
    seed: int | None = None,
    index: Cache | None = None,
    read_ahead: int | None = None,
    retries: int = 5,
    timeout_s: float = 60.0,
    pickle: bool = False,
    unique_keys: bool = True,
    max_field_bytes: int | str | None = None,
    unsafe_redirects: bool = False,
    storage_options: Mapping[str, Any] | None = None,
) -> TarStream | TarTable:
    """Return a dataset of the samples in WebDataset shards: tar archives in which files of one name make a sample.

    Samples, fields and values are those of the webdataset package. There are two ways to read them:

    - `mode="stream"`: an iterable dataset. Shards are read from beginning to end, in an order that is random for each
      epoch and then shared out over ranks and workers; `buffer` mixes samples that are near each other.
    - `mode="random"`: a map-style dataset, with a length and any sampler. An index says where each sample is. It
      is made by reading all headers once, and kept on disk. Shards must not be compressed as a whole.

    Args:
        shards: a path or address, or several: `shard-{000..099}.tar`, `/data/*.tar`, `https://...`, `s3://...`, `gs://...`.
        mode: "stream" or "random".
        fields: which fields samples have, as for all sources: a name, a tuple, a list, a dict. `"jpg;png"` is the first
            of these that a sample has. None for a dict of all, with `__key__` and `__url__`.
        decode: True to decode fields by their names; False for bytes; "pil", "rgb8", "rgb", "torchrgb" and the like to
            decode images too; or a function that takes a field's name, with a dot before it, and its bytes, and returns
            None to leave it to others; or a list of these.
        transform: applied to each sample.
        shuffle: of streams: True for another order in each epoch. A sampler shuffles a map-style dataset.
        buffer: of streams that are shuffled: how many places a sample may come later than others around it (1,000).
        seed: of streams that are shuffled: decides about the order (0).
        index: of random access: the folder in which indices are kept, the user's cache folder (`$FEEDLINE_CACHE`) by
            default; False to keep none.
        read_ahead: chunks of shards that are fetched ahead, each by a thread: by default 4, none for local files, which
            the system reads ahead. With random access: requests for a batch that are under way at once, 32 by default.
        retries: how often a read is tried again when a connection drops. What had arrived is not read again.
        timeout_s: how long a server may say nothing.
        pickle: True to decode fields that are pickles. Whoever wrote them can then run any code here.
        unique_keys: False to take a key that comes again later in a shard for another sample, as the webdataset
            package does, instead of an error.
        max_field_bytes: the most bytes that a field, and all fields of a sample together, may have once unpacked, if
            they or their shard are compressed, or the shard is far away. `$FEEDLINE_MAX_SAMPLE_BYTES` by default, or
            2 GiB.
        unsafe_redirects: True to follow web servers also from https to http, and from public addresses to private ones.
        storage_options: for fsspec, which reads addresses other than http(s): `{"anon": True}`.

    Raises:
        BadOption: an argument makes no sense, or does not go with the mode.
        SourceError: a local pattern fits no file.

    Example:
        >>> import io, tarfile, tempfile
        >>> folder = tempfile.TemporaryDirectory()
        >>> with tarfile.open(f"{folder.name}/shard-0.tar", "w") as file:
        ...     for name, content in [("a.txt", b"hello"), ("a.cls", b"3"), ("b.txt", b"world"), ("b.cls", b"5")]:
        ...         info = tarfile.TarInfo(name)
        ...         info.size = len(content)
        ...         file.addfile(info, io.BytesIO(content))
        >>> dataset = TarDataset(f"{folder.name}/shard-{{0..0}}.tar", fields=("txt", "cls"))
        >>> list(dataset)
        [('hello', 3), ('world', 5)]
        >>> table = TarDataset(f"{folder.name}/shard-0.tar", mode="random", fields=("txt", "cls"), index=False)
        >>> len(table), table[1]
        (2, ('world', 5))
        >>> table.close()
        >>> folder.cleanup()
    """
    if mode not in ("stream", "random"):
        raise BadOption(f'mode={mode!r} is not one of "stream", "random".')
    names = expand(shards)
    limit = byte_count("max_field_bytes", max_field_bytes) or most_bytes()
    reading = Reading(
        read_ahead=read_ahead,
        max_field_bytes=limit,
        unique_keys=unique_keys,
        patience=Patience(retries, timeout_s=timeout_s),
        unsafe_redirects=unsafe_redirects,
        storage_options={} if storage_options is None else storage_options,
    )
    if not isinstance(pickle, bool):
        raise BadOption(f"pickle={pickle!r} is not True or False.")
    form = TarForm(fields, Decoder(decode, trusts_pickle=pickle, limit=limit))
    if mode == "stream":
        _refuse("stream", "random", index=index)
        return TarStream(
            names,
            form,
            reading,
            transform=transform,
            shuffle=False if shuffle is None else shuffle,
            buffer=1000 if buffer is None else buffer,
            seed=0 if seed is None else seed,
        )
    _refuse("random", "stream", shuffle=shuffle, buffer=buffer, seed=seed)
    return TarTable(names, form, reading, transform=transform, cache=_cache(index))


def _refuse(mode: str, other: str, **options: Any) -> None:
    for name, value in options.items():
        if value is not None:
            hint = " Give the loader shuffle=True and a seed." if other == "stream" else ""
            raise BadOption(f'{name}={value!r} is about mode="{other}", but the mode is "{mode}".{hint}')


def _cache(index: Cache | None) -> Cache:
    if index is not None and not isinstance(index, (bool, str, os.PathLike)):
        raise BadOption(f"index={index!r} is neither True, False nor the path of a folder.")
    return True if index is None else index
