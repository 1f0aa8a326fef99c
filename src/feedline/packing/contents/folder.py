"""What is in a folder: pictures by class, other files, a table that names files."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

from feedline.packing.contents.contents import Contents, Field, spread, type_text
from feedline.packing.folders import Files, open_folder, open_table
from feedline.packing.schema import Sample


def look(path: Path) -> Contents:
    """Look into a folder of files."""
    files, fields, facts = open_folder(path)
    names = (files.path_of(index) for index in range(len(files)))
    kinds = Counter(os.path.splitext(name)[1].lower() or "(none)" for name in names)
    details: dict[str, object] = {"suffixes": dict(kinds.most_common(10))}
    if "classes" in facts:
        targets = files.targets
        assert targets is not None  # there are classes
        labels = Counter(targets.tolist())
        classes = facts["classes"]
        details["classes"] = {classes[label]: count for label, count in sorted(labels.items())[:20]}
        if len(classes) > 20:
            details["further classes"] = len(classes) - 20
        kind, text = "folder of pictures, one folder per class", f"ImageFolder({str(path)!r})"
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
    types = {"image": "picture", "data": "bytes"}
    shown = tuple(Field(name, types.get(name) or type_text(first[name])) for name in dict.fromkeys((*fields, "path")))
    return Contents(path, kind, len(files), size, shown, take, details, text, file_count=len(files))
