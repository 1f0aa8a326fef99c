"""What is in a folder: pictures by class, other files, a table that names files."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

from feedline._optional import require
from feedline.datasets.files import FileDataset
from feedline.datasets.pictures import open_picture
from feedline.errors import MissingExtra, SourceError
from feedline.packing.contents.contents import Contents, Field, spread, type_text
from feedline.packing.folders import Files, Relative, is_picture_name, open_folder, open_table, unused_in
from feedline.packing.line import LISTS
from feedline.packing.schema import Sample

_LOOKED_AT = 200
"""Pictures whose size is looked at."""
_UNEQUAL = "they have to be made equal before they make batches"


def look(path: Path, suffixes: Counter[str]) -> Contents:
    """Look into a folder of files; `suffixes` says how many of each there are."""
    details: dict[str, object] = {"suffixes": dict(suffixes.most_common(10))}
    try:
        files, fields, facts = open_folder(path)
    except SourceError as exc:  # pictures in some folders only, so that these are no classes
        files, fields, facts = FileDataset(path, transform=Relative(str(path))), ("data", "path"), {}
        details["cannot be packed"] = str(exc)
    unused = unused_in(path, fields)
    if unused.files:
        details["left out"] = list(unused.notes)
    if "classes" in facts:
        targets = files.targets
        assert targets is not None  # there are classes
        labels = Counter(targets.tolist())
        classes = facts["classes"]
        details["classes"] = {classes[label]: count for label, count in sorted(labels.items())[:20]}
        if len(classes) > 20:
            details["further classes"] = len(classes) - 20
        kind, text = "folder of pictures, one folder per class", f"ImageFolder({str(path)!r})"
    elif "image" in fields:
        kind, text = "folder of pictures", f"ImageFolder({str(path)!r}, labels=None)"
    else:
        kind, text = "folder of files", f"FileDataset({str(path)!r})"
    return _contents(path, kind, files, fields, details, text)


def look_at_table(path: Path) -> Contents:
    """Look into a CSV file that names files."""
    files, fields, _ = open_table(path, root=None, path_column=None)
    return _contents(path, "CSV table of files", files, fields, {}, "")


def _contents(
    path: Path, kind: str, files: Files, fields: tuple[str, ...], details: dict[str, object], text: str
) -> Contents:
    size = sum(os.stat(files.path_of(index)).st_size for index in range(len(files)))

    def take(wanted: int) -> list[Sample]:
        return [files[number] for number in spread(len(files), wanted)]

    first = files[0]
    sizes = _picture_sizes(files)
    details.update(sizes)
    collate = LISTS if text.startswith("ImageFolder") and _UNEQUAL in str(sizes.get("size of pictures")) else ""
    types = {"image": "picture", "data": "bytes"}
    shown = tuple(Field(name, types.get(name) or type_text(first[name])) for name in dict.fromkeys((*fields, "path")))
    return Contents(path, kind, len(files), size, shown, take, details, text, file_count=len(files), collate=collate)


def _picture_sizes(files: Files) -> dict[str, object]:
    """Return what can be told of the sizes of pictures, from their beginnings."""
    places = [files.path_of(number) for number in spread(len(files), _LOOKED_AT)]
    paths = [place for place in places if is_picture_name(place)]
    try:
        pillow = require("PIL.Image", extra="images", purpose="Looking at pictures")
    except MissingExtra:
        return {}
    sizes: Counter[tuple[int, int]] = Counter()
    damaged = []
    for place in paths:
        try:
            with open_picture(place) as picture:
                sizes[picture.size] += 1
        except (OSError, SyntaxError, ValueError, pillow.DecompressionBombError):
            damaged.append(place)
    found: dict[str, object] = {}
    looked = "" if len(paths) == len(files) else f", of {len(paths):,} that were looked at"
    if len(sizes) == 1:
        found["size of pictures"] = f"all {_text(next(iter(sizes)))} (width x height){looked}"
    elif sizes:
        most = sizes.most_common(1)[0][0]
        low, high = (tuple(pick(size[axis] for size in sizes) for axis in (0, 1)) for pick in (min, max))
        found["size of pictures"] = (
            f"{len(sizes)} sizes from {_text(low)} to {_text(high)} (width x height), most often {_text(most)}{looked}"
            f"; {_UNEQUAL}"
        )
    if damaged:
        found["not readable"] = f"{len(damaged)} of {len(paths):,} pictures that were looked at, such as {damaged[0]}"
    return found


def _text(size: tuple[int, ...]) -> str:
    return " x ".join(map(str, size))
