"""Which formats there are, by what they are recognised, and who writes them."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from feedline._optional import require
from feedline.datasets.opening import COMPRESSED, SUFFIXES
from feedline.errors import BadOption
from feedline.packing.writers.contract import Writer


@dataclass(frozen=True)
class Format:
    """One way to store samples."""

    name: str
    package: str
    """That it needs; "" if none."""
    extra: str = ""
    has_shards: bool = False
    """True if several files can be read as one dataset."""

    @property
    def suffixes(self) -> tuple[str, ...]:
        """Of its files; the first is the one that is written."""
        return tuple(suffix for suffix in SUFFIXES[self.name] if suffix not in COMPRESSED)

    @property
    def module(self) -> ModuleType:
        """The file of the writer, imported only now."""
        if self.package:
            require(self.package, extra=self.extra, purpose=f"Packing into {self.name}")
        return importlib.import_module(f"feedline.packing.writers.{self.name}")

    @property
    def writer(self) -> type[Writer]:
        """The class of the writer."""
        kind: type[Writer] = getattr(self.module, f"{self.name.capitalize()}Writer")
        return kind


FORMATS = {
    found.name: found
    for found in (
        Format("lmdb", "lmdb", "lmdb"),
        Format("hdf5", "h5py", "hdf5", has_shards=True),
        Format("tar", "", has_shards=True),
        Format("parquet", "pyarrow", "parquet", has_shards=True),
        Format("npy", ""),
    )
}


def format_of(out: Path, name: str | None) -> Format:
    """Return the format with this name, or the one that an output's suffix stands for.

    Raises BadOption: there is none.
    """
    if name is not None:
        if name not in FORMATS:
            raise BadOption(f"format={name!r} is none of {', '.join(FORMATS)}.")
        return FORMATS[name]
    found = next((one for one in FORMATS.values() if out.suffix.lower() in one.suffixes), None)
    if found is None:
        raise BadOption(
            f"{str(out)!r} does not say by its suffix which format is meant. Give it one, such as "
            f"{', '.join(one.suffixes[0] for one in FORMATS.values())}, or say --format {'|'.join(FORMATS)}."
        )
    return found
