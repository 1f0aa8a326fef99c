"""What is in a folder that `feedline.precompute` has filled, or a `CachedDataset`."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from feedline._optional import is_tensor
from feedline.datasets.cache.folder import FILE, read_store
from feedline.datasets.cache.sample_store import Encoded, Kind, SampleStore, decode
from feedline.errors import CorruptSource
from feedline.packing.contents.contents import Contents, fields_of
from feedline.packing.schema import Sample

_TYPED = 8


def look(path: Path) -> Contents:
    """Look into the folder, or the file of samples in it."""
    folder = path if path.is_dir() else path.parent
    vault = read_store(folder)
    try:
        head = vault.head()
        if head is None:
            raise CorruptSource(
                f"{folder / FILE} is damaged, or of another version of feedline. A cache is dropped and filled again "
                "when it is used; feedline.precompute has to be called again."
            )
        vault.open(head)
        stored, is_whole = vault.stored, vault.is_whole
        typed, pickled = _samples(vault, head.count, _TYPED)
    finally:
        vault.close()

    def take(wanted: int) -> list[Sample]:
        opened = read_store(folder)
        try:
            opened.open(head)
            return _samples(opened, head.count, wanted)[0]
        finally:
            opened.close()

    details: dict[str, Any] = {"kept": f"{stored:,} of {head.count:,} samples"}
    if pickled:
        details["pickled"] = "samples that pickle has written, which would run code; they are not read here"
    given = ", pickle=True" if pickled else ""
    return Contents(
        path,
        "precomputed samples" if is_whole else "cache of samples, or precomputed in part",
        head.count,
        (folder / FILE).stat().st_size,
        fields_of(typed),
        take,
        details,
        f"PrecomputedDataset({str(folder)!r}{given})" if is_whole else "",
    )


def _samples(vault: SampleStore, count: int, wanted: int) -> tuple[list[Sample], bool]:
    """Return the first samples that are there, and whether there are pickled ones among them."""
    found = list(itertools.islice(_found(vault, count), wanted))
    records = [one for one in found if one.kind is Kind.RECORD]
    return [_sample(decode(one, pickles=False)) for one in records], len(records) < len(found)


def _found(vault: SampleStore, count: int) -> Iterator[Encoded]:
    for index in range(count):
        one = vault.get(index)
        if isinstance(one, Encoded):
            yield one


# Any: a sample of any form.
def _sample(sample: Any) -> Sample:
    if isinstance(sample, (tuple, list)) and len(sample) <= 16:
        sample = {str(number): value for number, value in enumerate(sample)}
    named = sample if isinstance(sample, dict) else {"value": sample}
    return {str(name): value.numpy() if is_tensor(value) else value for name, value in named.items()}
