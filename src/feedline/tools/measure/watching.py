"""Hooks that watch which files samples open and which images they decode.

The hooks stay for the rest of the process, which is short-lived: an audit hook cannot be removed.
"""

from __future__ import annotations

import builtins
import io
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from feedline.system.timing import Clock
from feedline.tools.measure.measured import Decoded, Opened
from feedline.tools.measure.noise import usual_s

if TYPE_CHECKING:
    from PIL.Image import Image

_SYSTEM = ("/proc/", "/sys/", "/dev/", sys.prefix, sys.base_prefix)
"""Prefixes of paths that do not belong to the dataset."""

_OFTEN = 0.25
"""A file that at least this share of the samples opens is worth keeping open. A guess."""

_READ_ONCE = 1 << 26
"""Upper bound for the bytes read from a file to time reading it, and for the size of a file kept in memory."""


_WHOLE: dict[str, Callable[[str], object]] = {
    ".npy": np.load,
    ".npz": lambda path: dict(np.load(path)),
    ".json": lambda path: json.loads(Path(path).read_bytes()),
}
"""How to load files that samples read as a whole, by extension: parsing takes longer than reading the bytes."""


class Opens:
    """Counts the files that samples open with `open`, `sqlite3.connect` and `h5py.File`."""

    def __init__(self) -> None:
        self._opened: dict[str, str] = {}
        """For the sample being made: what opened each file, by path."""
        self._how: dict[str, str] = {}
        self._by_samples: Counter[str] = Counter()
        self._samples = 0
        self._read_before = 0
        self._is_on = False
        sys.addaudithook(self._audit)
        if (h5py := sys.modules.get("h5py")) is not None:
            _wrap(h5py.File, "__init__", lambda args, *_: self._note("h5py", args[1] if len(args) > 1 else None))

    def _audit(self, event: str, args: tuple[object, ...]) -> None:
        if self._is_on and event in ("open", "sqlite3.connect"):
            self._note(event.partition(".")[0], args[0])

    def _note(self, how: str, path: object) -> None:
        if self._is_on and isinstance(path, (str, bytes, os.PathLike)):
            name = os.path.abspath(os.fsdecode(path))
            if not name.startswith(_SYSTEM):
                self._opened[name] = how

    def begin(self) -> None:
        """Start counting."""
        self._is_on, self._read_before = True, _bytes_read()

    def sample(self) -> None:
        """Note that a sample was made."""
        self._samples += 1
        self._by_samples.update(self._opened.keys())
        self._how.update(self._opened)
        self._opened.clear()

    def end(self, clock: Clock) -> tuple[Opened, ...]:
        """Stop counting; return the files that many samples opened."""
        self._is_on = False
        read = (_bytes_read() - self._read_before) // max(self._samples, 1)
        often = [
            (path, count)
            for path, count in self._by_samples.most_common(8)
            if count >= max(4, _OFTEN * self._samples) and os.path.isfile(path)
        ]
        return tuple(
            Opened(path, count, self._again_s(path, read, clock), read, self._how[path]) for path, count in often
        )

    def _again_s(self, path: str, size: int, clock: Clock) -> float:
        """Return how long it takes to open a file the way samples do, and to read as much as one sample does."""
        how = self._how[path]

        def again() -> None:
            if how == "h5py":
                sys.modules["h5py"].File(path, "r").close()
            elif how == "sqlite3":
                connection = sys.modules["sqlite3"].connect(path)
                connection.execute("SELECT count(*) FROM sqlite_master")
                connection.close()
            elif size >= os.path.getsize(path) and path.endswith(tuple(_WHOLE)):
                _WHOLE[os.path.splitext(path)[1]](path)
            else:
                with open(path, "rb") as file:
                    file.read(min(size, _READ_ONCE))

        try:
            return usual_s(again, clock)
        except Exception:  # raised by any library: the file is gone or no longer readable
            return 0.0


@contextmanager
def kept_open() -> Iterator[dict[str, tuple[str, str]]]:
    """Open each file only once within the context: opening it again returns the kept handle or content.

    Yields a dict with the mode of each file that `open` has opened, and how it is read: "lines", "whole", or an empty
    text if in parts. Keys are paths.
    """
    # Any: functions of other libraries, their arguments and results.
    kept: dict[str, Any] = {}
    reads: dict[str, tuple[str, str]] = {}

    def once(name: str, function: Callable[..., object], keep: Callable[[object], object]) -> Callable[..., object]:
        def opened(*args: object, **options: object) -> object:
            path, mode = [*args, None, None][:2]
            mode = str(options.get("mode", mode or "r"))
            if not isinstance(path, (str, bytes, os.PathLike)) or set(mode) & set("wax+"):
                return function(*args, **options)  # opened for writing, or not by path
            key = f"{name} {args!r} {options!r}"
            if key not in kept:
                kept[key] = keep(function(*args, **options))
            if name != "open":
                return kept[key]
            where = os.path.abspath(os.fsdecode(path))
            reads.setdefault(where, (mode, ""))
            return kept[key](lambda how: reads.update({where: (mode, how)}))

        return opened

    def parsed_once(original: Callable[..., object]) -> Callable[..., object]:
        def load(file: object, **options: object) -> object:
            if not isinstance(file, _Text) or options:
                return original(file, **options)
            key = f"json {id(file.lines)}"  # identifies the file for as long as it is kept
            if key not in kept:
                kept[key] = original(file)
            return kept[key]

        return load

    places = [(builtins, "open", _content), (io, "open", _content), (np, "load", lambda array: array)]
    places += [(sys.modules[name], kind, _Open) for name, kind in _OPENING if name in sys.modules]
    originals, parse = [getattr(module, name) for module, name, _ in places], json.load
    try:
        for (module, name, keep), original in zip(places, originals, strict=True):
            setattr(module, name, once(name, original, keep))
        json.load = parsed_once(parse)
        yield reads
    finally:
        json.load = parse
        for (module, name, _), original in zip(places, originals, strict=True):
            setattr(module, name, original)


def kept_overhead_s(file: Opened, reads: dict[str, tuple[str, str]], clock: Clock) -> float:
    """Return the time to open and read a kept file. A dataset that keeps the file itself saves this time, too."""
    mode, read_by = reads.get(file.path, ("r", ""))

    def again() -> None:
        if file.how == "h5py":
            sys.modules["h5py"].File(file.path, "r").close()
        elif file.how == "sqlite3":
            sys.modules["sqlite3"].connect(file.path).close()
        elif file.path.endswith(".npy"):
            np.load(file.path)
        else:
            with open(file.path, mode) as opened:
                if read_by == "lines":
                    opened.readlines()
                elif read_by == "whole" and file.path.endswith(".json"):
                    json.load(opened)

    try:
        return usual_s(again, clock)
    except Exception:  # raised by any library: the file is gone, or cannot be read this way
        return 0.0


_OPENING = (("h5py", "File"), ("sqlite3", "connect"))


def _content(file: Any) -> Callable[[Callable[[str], None]], object]:
    """Return a function that opens the content of a file again, from memory, and notes how it is read."""
    with file:
        if os.fstat(file.fileno()).st_size > _READ_ONCE:
            raise OSError("The file is too large to be kept")
        content = file.read()
    if isinstance(content, str):
        lines = io.StringIO(content).readlines()
        return lambda note: _Text(content, lines, note)
    return lambda note: _Bytes(content, note)


class _Text(io.StringIO):
    """The content of a text file, split into lines only once."""

    def __init__(self, content: str, lines: list[str], note: Callable[[str], None]) -> None:
        super().__init__(content)
        self.lines = lines
        self._note = note

    def readlines(self, hint: int | None = -1, /) -> list[str]:  # type: ignore[override]  # as io.StringIO's own
        if self.tell() or (hint or 0) > 0:
            return super().readlines(-1 if hint is None else hint)
        self._note("lines")
        self.seek(0, os.SEEK_END)
        return list(self.lines)

    def __iter__(self) -> Iterator[str]:  # type: ignore[override]  # a plain iterator is all that `for` needs
        return iter(self.readlines())

    def read(self, size: int | None = -1, /) -> str:
        if size is None or size < 0:
            self._note("whole")
        return super().read(size)


class _Bytes(io.BytesIO):
    """The content of a binary file."""

    def __init__(self, content: bytes, note: Callable[[str], None]) -> None:
        super().__init__(content)
        self._note = note

    def read(self, size: int | None = -1, /) -> bytes:
        if (size is None or size < 0) and not self.tell():
            self._note("whole")
        return super().read(size)


class _Open:
    """Wraps an open handle and ignores `close`."""

    def __init__(self, opened: Any) -> None:
        self._opened = opened

    def __getattr__(self, name: str) -> object:
        return getattr(self._opened, name)

    def __getitem__(self, key: object) -> object:
        return self._opened[key]

    def __iter__(self) -> Iterator[object]:
        return iter(self._opened)

    def __len__(self) -> int:
        return len(self._opened)

    def __contains__(self, key: object) -> bool:
        return key in self._opened

    def __enter__(self) -> _Open:
        return self

    def __exit__(self, *_: object) -> None:
        """Stay open."""

    def close(self) -> None:
        """Stay open."""


def _bytes_read() -> int:
    try:
        return int(Path("/proc/self/io").read_text().split()[1])
    except OSError:
        return 0


class Decodes:
    """Counts the pixels that Pillow and OpenCV decode, if the program has imported them."""

    def __init__(self) -> None:
        self._by = ""
        self._pixels = 0
        self._seconds = 0.0
        self._kept = 1.0
        # Any: modules that the program has imported.
        self._cv2: Any = sys.modules.get("cv2")
        self._pillow: Any = sys.modules.get("PIL.Image")
        self._stored: Callable[[float], AbstractContextManager[None]] | None = None
        """Saves a decoded image at a scale. Within the context, every image is opened from that copy."""
        if (files := sys.modules.get("PIL.ImageFile")) is not None:
            _wrap(files.ImageFile, "load", self._after_pillow, only=lambda args: bool(args[0].tile))
            assert self._pillow is not None  # PIL.ImageFile imports it
            _wrap(self._pillow.Image, "crop", self._after_crop)
            _wrap(self._pillow.Image, "resize", self._after_resize)
        for name in () if self._cv2 is None else ("imread", "imdecode"):
            _wrap(self._cv2, name, self._after_opencv)

    def begin(self) -> None:
        """Start counting from zero."""
        self._pixels, self._seconds, self._kept = 0, 0.0, 1.0

    def _after_crop(self, args: tuple[Image, ...], result: Image, _: float) -> None:
        self._keep(args[0], result.width * result.height)

    def _after_resize(self, args: tuple[Any, ...], *_: object) -> None:
        # The only argument with four numbers is the part of the image that is resized.
        for left, top, right, bottom in (box for box in args[2:] if isinstance(box, (tuple, list)) and len(box) == 4):
            self._keep(args[0], (right - left) * (bottom - top))

    def _keep(self, image: Image, pixels: float) -> None:
        share = pixels / max(image.width * image.height, 1)
        self._kept = min(self._kept, share) if share > 0 else self._kept

    def _after_pillow(self, args: tuple[Image, ...], _: object, seconds: float) -> None:
        image = args[0]
        if self._stored is None:
            copy, kind = image.copy(), image.format or "PNG"
            self._stored = lambda scale: self._small_pillow(copy, kind, scale)
        self._add("Pillow", image.width * image.height, seconds)

    def _after_opencv(self, args: tuple[object, ...], result: NDArray[np.generic] | None, seconds: float) -> None:
        if result is None:  # it could not be decoded
            return
        if self._stored is None:
            self._stored = lambda scale: self._small_opencv(result, scale)
        self._add("OpenCV", result.shape[0] * result.shape[1], seconds)

    def _add(self, by: str, pixels: int, seconds: float) -> None:
        self._by = by
        self._pixels += pixels
        self._seconds += seconds

    def end(self, samples: int, used_pixels: float, sample_s: Callable[[], float | None]) -> Decoded | None:
        """Return the decoding work per sample; None if no image was decoded, or if samples hold no images.

        Calls `sample_s` while all images are replaced by a small one. It makes samples again and returns the time of
        one, or None if that fails.
        """
        if not self._pixels or not samples or not used_pixels or self._stored is None:
            return None
        pixels, seconds, kept = self._pixels / samples, self._seconds / samples, self._kept
        used_pixels /= kept  # or a crop of the stored image would have fewer pixels than the sample
        with self._stored(min(1.0, (used_pixels / pixels) ** 0.5)):
            return Decoded(self._by, pixels, used_pixels, seconds, sample_s(), kept)

    @contextmanager
    def _small_pillow(self, image: Image, kind: str, scale: float) -> Iterator[None]:
        data = io.BytesIO()
        image.resize((max(1, round(image.width * scale)), max(1, round(image.height * scale)))).save(data, kind)
        opening = self._pillow.open
        self._pillow.open = lambda *_, **__: opening(io.BytesIO(data.getvalue()))
        try:
            yield
        finally:
            self._pillow.open = opening

    @contextmanager
    def _small_opencv(self, image: object, scale: float) -> Iterator[None]:
        # Always as JPEG: an array does not show its original format.
        _, data = self._cv2.imencode(".jpg", self._cv2.resize(image, None, fx=scale, fy=scale))
        read, decode = self._cv2.imread, self._cv2.imdecode
        self._cv2.imread = self._cv2.imdecode = lambda *_, **__: decode(data, 1)
        try:
            yield
        finally:
            self._cv2.imread, self._cv2.imdecode = read, decode


# Any: functions and objects of other libraries.
def _wrap(
    owner: object, name: str, after: Callable[[Any, Any, float], None], only: Callable[[Any], bool] = lambda _: True
) -> None:
    """Call `after` with the arguments, result and CPU seconds of each call of a function that `only` accepts.

    Arguments given by name come last.
    """
    original = getattr(owner, name)

    def wrapped(*args: object, **options: object) -> object:
        if not only(args):
            return original(*args, **options)
        began = time.thread_time()
        result = original(*args, **options)
        after((*args, *options.values()), result, time.thread_time() - began)
        return result

    setattr(owner, name, wrapped)
