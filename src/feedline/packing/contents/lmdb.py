"""What is in an LMDB environment."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from feedline import records
from feedline.errors import CorruptSource
from feedline.packing.contents.contents import Contents, Field, fields_of, spread
from feedline.packing.line import stored_text
from feedline.packing.schema import Sample
from feedline.packing.writers import lmdb

_MAGIC = b"\xde\xc0\xef\xbe"


def is_lmdb(path: Path) -> bool:
    """True if a file begins as LMDB's do."""
    with open(path, "rb") as file:
        return file.read(20)[16:20] == _MAGIC


def look(path: Path) -> Contents:
    """Look into an environment, a file or a folder, whoever wrote it."""
    with lmdb.open_environment(path, readonly=True) as environment:
        count = environment.stat()["entries"]
        details: dict[str, Any] = {"page size": environment.stat()["psize"], "depth": environment.stat()["depth"]}
    stored = lmdb.stored(path)
    count -= stored is not None

    def take(wanted: int) -> list[Sample]:
        with lmdb.open_environment(path, readonly=True) as environment, environment.begin() as transaction:
            if stored is not None:
                keys = [lmdb.key_of(number) for number in spread(count, wanted)]
                return [_sample(key, transaction.get(key), is_record=True) for key in keys]
            found: list[Sample] = []
            for key, value in transaction.cursor():
                if len(found) == wanted:
                    break
                found.append(_sample(key, value, is_record=False))
            return found

    first = take(8)
    fields = fields_of(first)
    if stored is None and first and "key" in first[0]:
        fields = (Field("key", "bytes", f"such as {first[0]['key'][:60]!r}"), *fields[1:])
    data = path / "data.mdb" if path.is_dir() else path
    text = stored_text("lmdb", str(path), stored, f"LMDBDataset({str(path)!r})")
    return Contents(path, "LMDB", count, data.stat().st_size, fields, take, details, text, stored)


def _sample(key: bytes, value: bytes | None, *, is_record: bool) -> Sample:
    if value is None:
        raise CorruptSource(f"The key {key!r} is missing, although the environment says how many samples it has.")
    if value[:4] == b"FDL1":
        try:
            sample = records.decode(value)
        except CorruptSource:
            if is_record:
                raise
        else:
            return sample if isinstance(sample, dict) else {"value": sample}
    return {"key": bytes(key), "value": bytes(value)}
