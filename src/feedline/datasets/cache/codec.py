"""Samples as bytes, and back, as caches keep them."""

from __future__ import annotations

import pickle
from typing import Any

from feedline import records
from feedline.datasets.cache.vault import Found, Kind
from feedline.errors import CorruptSource


# Any: a sample of any form.
def encode(sample: Any, *, pickles: bool) -> tuple[Kind, bytes]:
    """Return a sample as bytes.

    Args:
        sample: what `feedline.records` can hold.
        pickles: True to pickle what it cannot.

    Raises:
        NotARecord: it cannot, and pickle was not asked for.
    """
    try:
        return Kind.RECORD, records.encode(sample)
    except records.NotARecord as exc:
        if not pickles:
            raise records.NotARecord(
                f"{exc} Or give pickle=True: samples are then stored with pickle, which runs code when they are read, "
                "so that everybody who can write to the store can run code in your program."
            ) from None
    return Kind.PICKLE, pickle.dumps(sample, pickle.HIGHEST_PROTOCOL)


def decode(found: Found, *, pickles: bool) -> Any:
    """Return a sample.

    Arrays can be written to if the bytes are one's own, and are read-only views if they belong to a cache.

    Raises:
        CorruptSource: these bytes are no sample, or one that was pickled, which was not asked for.
    """
    if found.kind is Kind.RECORD:
        return records.decode(found.data, owned=type(found.data) is bytearray)
    if not pickles:
        raise CorruptSource("It was stored with pickle, and pickle=True was not given to read it.")
    return pickle.loads(found.data)
