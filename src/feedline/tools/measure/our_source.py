"""The source of ours that reads what samples read, timed on the user's own file."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from feedline.datasets import ArrayDataset, open_dataset
from feedline.datasets.formats.files.image_folder import IMAGES
from feedline.images import Compose, Resize
from feedline.images.header import read_header
from feedline.loader.loader import Loader
from feedline.system.timing import Clock
from feedline.tools.measure.fields import image_size
from feedline.tools.measure.measured import Samples, SlowImages, SlowRows
from feedline.tools.measure.noise import usual_s
from feedline.tools.measure.opened_files import OpenedFiles, format_of, paths_in
from feedline.tools.measure.reading import TABLES, Followed, follow

_LEAST_SHARE = 0.5
"""Rows that take a smaller share of a sample's time are not what to change first."""
_MOST_BYTES = 128 << 20
"""Larger files are tried only in formats that give a row without reading much else."""
_BY_ROW = ("hdf5", "npy", "lmdb")
_NOT_ROWS = ("pictures", "files", "precomputed")
_MOST_CANDIDATES = 8
_MOST_PATHS = 200
"""That many files are looked at, to see which of them a source reads."""
_TIMED_S = 0.4
_MOST_ROWS = 20_000
_MOST_IMAGES = 5
_IMAGE_S = 0.06
"""How long decoding one of them is timed."""
_MOST_PIXELS = 1 << 26
"""A larger image is not decoded to see how long that takes."""
TOO_MANY_PIXELS = 4
"""An image with fewer pixels per pixel that is needed is not too large. A guess."""


# Any, throughout: datasets, samples and objects of other libraries.
@dataclass(frozen=True)
class FileReads:
    """What a dataset reads from files, and how long a source of ours takes for the same."""

    dataset: Any
    ask: Callable[[Any], object]
    opened: OpenedFiles
    clock: Clock

    def of(self, samples: Samples, indices: list[Any], some: object, size: int, until_s: float) -> Samples:
        """Return measurements of samples with what they read.

        Args:
            samples: the measurements.
            indices: of samples that can be made again; empty if none can.
            some: one of the samples.
            size: the number of samples in a batch.
            until_s: when to try no further file, on the clock of `time.monotonic`.
        """
        followed = follow(self.ask, indices, self.opened)
        is_ours = type(self.dataset).__module__.startswith("feedline.")
        if followed.samples and not is_ours:
            rows = self._rows(followed, samples, size, until_s)
            images = self._images(followed, samples, image_size(some))
            samples = replace(samples, rows=rows, images=images)
        most_s = samples.usual_s - min(followed.remains_s, samples.usual_s / 2)  # following lines takes time, too
        return replace(samples, reopened=self.opened.reopened(most_s, self.clock))

    def _rows(self, followed: Followed, samples: Samples, size: int, until_s: float) -> SlowRows | None:
        """Return how samples read rows, and the time of the source of ours that reads them; None if they hardly do."""
        reader = followed.reader
        is_file = os.path.isfile(reader)
        if not (is_file or reader in TABLES):
            return None
        remains_s = followed.remains_s
        if not is_file or format_of(reader) != "jsonl":
            remains_s += followed.spent_s["json"] / followed.samples
        read_s = samples.usual_s - remains_s
        if read_s < _LEAST_SHARE * samples.usual_s:
            return None
        rows = SlowRows("" if is_file else reader, reader if is_file else "", read_s)
        if reader == "h5py" and followed.hdf5:
            path, name = max(followed.hdf5, key=lambda key: followed.hdf5[key].bytes)
            rows = replace(rows, path=path, chunks=followed.hdf5[path, name].words)
        length, best = len(self.dataset), rows
        for opening, path, arguments in islice(self._candidates(followed), _MOST_CANDIDATES):
            if best.row_s is not None and time.monotonic() > until_s:
                break
            try:
                with closing(opening()) as source:
                    unused = len(source) - length
                    if unused < 0 or (best.row_s is not None and unused):
                        continue
                    kind = type(source).__name__
                    opens = "open_dataset" if kind == "SQLDataset" else kind  # which would need a query
                    best = replace(
                        rows, path=path, source=kind, unused=unused,
                        row_s=_row_s(source, length, size, self.clock),
                        code=f"dataset = feedline.datasets.{opens}({arguments})",
                    )  # fmt: skip
            except Exception:  # of a file of any kind: it may be damaged, or cannot be opened twice
                continue
            if not unused:
                break
        return best

    def _candidates(self, followed: Followed) -> Iterator[tuple[Callable[[], Any], str, str]]:
        """Yield sources for what the samples read, the most likely first: each with its path, and arguments as code."""
        options, text = dict[str, Any](), ""
        if followed.reader == "h5py":
            paths = list(dict.fromkeys(path for path, _ in followed.hdf5))
            options = {"fields": tuple(name for _, name in followed.hdf5)}
            text = f", fields={options['fields']!r}"
            if len(paths) > 1:
                return  # no source reads samples from several files
        elif os.path.isfile(followed.reader):
            paths = [followed.reader]
        else:
            often = [path for path, _ in followed.paths.most_common()]
            paths = [*self.opened.often(), *often, *self.opened.before, *paths_in(self.dataset)]
        for path in filter(os.path.isfile, islice(dict.fromkeys(paths), _MOST_PATHS)):
            found = format_of(path)
            is_small = os.path.getsize(path) <= _MOST_BYTES or found in _BY_ROW
            if found is not None and found not in _NOT_ROWS and is_small and (found != "hdf5" or options):
                yield partial(open_dataset, Path(path), **options), path, f"{path!r}{text}"
        if followed.reader != "pandas":
            return
        frame_kind = sys.modules["pandas"].DataFrame
        for name, frame in list(getattr(self.dataset, "__dict__", {}).items()):
            if isinstance(frame, frame_kind):
                columns = "{" + f"name: dataset.{name}[name].to_numpy() for name in dataset.{name}" + "}"
                arrays = {str(column): frame[column].to_numpy() for column in frame}
                yield partial(ArrayDataset, arrays), "", columns

    def _images(self, followed: Followed, samples: Samples, size: tuple[int, int] | None) -> SlowImages | None:
        """Return how long samples take to decode images, and how long `feedline.images` takes for the same files.

        None if they decode none, or if the images are not much larger than those of the samples. `size` is the height
        and width of the image in a sample; None if it has none.
        """
        by = "Pillow" if "PIL" in followed.spent_s else "OpenCV" if "cv2" in sys.modules else ""
        if size is None or not by:
            return None
        read = [path for path in (*self.opened.by_samples, *followed.paths) if _is_image(path)]
        paths = (read or [path for path in paths_in(self.dataset) if _is_image(path)])[:_MOST_IMAGES]
        try:
            data = [Path(path).read_bytes() for path in paths]
            headers = [read_header(one) for one in data]
            pixels = sum(one.width * one.height for one in headers) / len(headers)
            # A crop of a smaller image would have fewer pixels than the sample.
            height, width = (max(1, round(side * followed.kept**-0.5)) for side in size)
            if not TOO_MANY_PIXELS * height * width <= pixels <= _MOST_PIXELS:
                return None
            usual = partial(usual_s, clock=self.clock, most_s=_IMAGE_S)
            decode = Compose([Resize((height, width))])
            each = sum(self.opened.by_samples[path] for path in read) / max(self.opened.samples, 1) or 1.0
            image_s = each * float(np.mean([usual(partial(decode, one)) for one in data]))
            library = _pillow if by == "Pillow" else _opencv
            whole_s = each * float(np.mean([usual(partial(library, path, (width, height))) for path in paths]))
        except Exception:  # of files of any kind
            return None
        seen_s = followed.spent_s["PIL"] / followed.samples if by == "Pillow" else whole_s
        # It cannot take longer than the sample does: then the sample resizes in another way, or decodes less.
        library_s = min(whole_s, seen_s, samples.usual_s)
        return SlowImages(by, paths[0], pixels, (height, width), library_s, image_s, followed.kept)


def _row_s(source: Any, length: int, size: int, clock: Clock) -> float:
    """Return the time of a row in batches of random order, collating included.

    Before that, other batches fill what the source keeps in memory: of a small file, all of it.
    """
    row_s = 0.0
    for seed in range(2):
        loader = Loader(source, size, sampler=Random(seed).sample(range(length), min(length, _MOST_ROWS)))
        until_s, rows, before = time.monotonic() + _TIMED_S, 0, clock.now()
        for _ in loader:
            rows += size
            if time.monotonic() > until_s:
                break
        row_s = clock.since(before)[0] / min(rows, length)
        loader.close()
    return row_s


def _is_image(path: str) -> bool:
    return path.lower().endswith(IMAGES) and os.path.isfile(path) and os.path.getsize(path) <= _MOST_BYTES


def _pillow(path: str, size: tuple[int, int]) -> None:
    with sys.modules["PIL.Image"].open(path) as image:
        image.convert("RGB").resize(size)


def _opencv(path: str, size: tuple[int, int]) -> None:
    cv2 = sys.modules["cv2"]
    cv2.resize(cv2.imread(path), size)
