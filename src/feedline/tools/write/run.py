"""The one loop that writes an output, from a loader's first item to the finished files.

    loader (items made by workers, in order)  ->  content (writes a shard)  ->  place (a local folder or a store)

After each complete shard, the place records the loader's position and the content's state. A run that finds such a
record continues from there and does what the interrupted run would have done: where shards end depends only on the
items, never on time or the number of workers. So both produce the same bytes. A shard that was not complete is thrown
away, and so is an output of a single file.
"""

from __future__ import annotations

import errno
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from feedline.errors import CorruptSource, PackError
from feedline.loader.base import session_of
from feedline.loader.loader import Loader
from feedline.system.failures import words
from feedline.system.files import sync
from feedline.system.process import core_count
from feedline.tools.write.opening import size_on_disk
from feedline.tools.write.place import Place
from feedline.types import JsonObject

_FINISHED = "finished"
"""Takes the place of the loader's state after the last item."""


@dataclass(frozen=True)
class Stage:
    """The progress of `pack` and `write_tokens`, for display."""

    name: str
    """"packing", "tokenizing" or "checking"."""
    done: int
    total: int | None
    """None if the dataset has no length."""


class Content(ABC):
    """What a run writes: samples in one of the formats, or tokens. Writes one file after the other.

    Args:
        path: the file to write, or folder of arrays. The run moves it away when it is complete.
    """

    stage: str
    """What `Stage` calls the writing."""
    shard: str
    """How the names of shards begin."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    @abstractmethod
    def count(self) -> int:
        """Samples or documents written so far."""

    @property
    def taken(self) -> int:
        """Samples taken so far, for display: also those that were left out or held back."""
        return self.count

    @abstractmethod
    def take(self, item: Any) -> None:  # Any: what the loader's collate function makes
        """Add an item to the file."""

    @abstractmethod
    def is_full(self) -> bool:
        """True if the file should become a complete shard now."""

    @abstractmethod
    def finish(self) -> int:
        """Complete the file, and return how many samples it has; 0 if nothing was written."""

    @abstractmethod
    def read_back(self, path: Path, report: Callable[[int], object]) -> int:
        """Read a complete file with the source that users read it with, and return how many samples it has."""

    @abstractmethod
    def state(self) -> JsonObject:
        """Return what `restore` takes, in JSON-compatible values. Called between two files."""

    @abstractmethod
    def restore(self, state: JsonObject) -> None:
        """Continue after the files of an interrupted run."""

    @abstractmethod
    def nothing(self) -> str:
        """Return why nothing was written."""

    def index_of(self, path: Path, crc32: int) -> bytes:
        """Return an index of a complete shard, to be stored beside it; none if it needs none."""
        return b""

    # object: JSON-compatible values.
    def manifest(self, shards: list[dict[str, object]]) -> JsonObject | None:
        """Return the manifest of a folder of shards; None if it has none."""
        return None

    @abstractmethod
    def close(self) -> None:
        """Release everything, without completing the file. May be called twice."""


# Any: a dataset of any class, and arguments of the loader.
def loader_of(
    dataset: Any, batch: int, collate: Callable[[Any], object], workers: int | None, **options: Any
) -> Loader:
    """Return the loader of a run: all cores by default, and the same random numbers in each run."""
    count = core_count() if workers is None else workers
    loader = Loader(dataset, batch, collate_fn=collate, workers=count, seed=0, **options)
    session_of(loader).rank_watch.is_over = True  # this process writes everything, whatever its rank
    return loader


@dataclass
class Run:
    """One call of `pack` or `write_tokens`."""

    loader: Loader
    content: Content
    place: Place
    is_sharded: bool
    total: int | None
    """Number of samples in the dataset, if known."""
    verify: bool
    """True to read each file back before it gets its name."""
    report: Callable[[Stage], object]
    shards: list[dict[str, object]] = field(default_factory=list, init=False)
    """What the manifest says of each complete shard: JSON-compatible values."""
    resumed: int = field(default=0, init=False)
    """Samples in shards of the interrupted run."""
    size: int = field(default=0, init=False)
    """Bytes of the output."""

    def run(self, out: Path) -> None:
        """Write, check and deliver the output, and close everything that the run uses."""
        with closing(self.place), closing(self.loader), closing(self.content), self._full_disk_explained(out):
            position: Any = (None, 0)  # the loader's state, and how many items of its next batch are done
            if self.place.left is not None:
                self.shards, position = self.place.left["shards"], self.place.left["position"]
                self.content.restore(self.place.left["content"])
                self.resumed = self.content.count
            if position[0] != _FINISHED:
                self._write(*position)
            if self.content.count == 0:
                raise PackError(self.content.nothing())
            if self.is_sharded:
                self.size = sum(int(str(entry["bytes"])) for entry in self.shards)
            built = None if self.is_sharded else self.content.path
            self.place.finish(built, partial(self.content.manifest, self.shards))

    # object: the loader's state.
    def _write(self, state: Any, skip: int) -> None:
        if state is not None:
            self.loader.load_state_dict(state)
        self._report(self.content.stage, self.content.taken)
        before = self._state()
        for batch in self.loader:
            for done, item in enumerate(batch[skip:], skip + 1):
                self.content.take(item)
                if self.is_sharded and self.content.is_full():
                    self._finish_file((before, done))
            skip = 0
            self._report(self.content.stage, self.content.taken)
            before = self._state()
        self._finish_file((_FINISHED, 0))

    def _state(self) -> object:
        return self.loader.state_dict() if self.is_sharded else None  # a single file is never resumed

    def _report(self, stage: str, done: int, total: int | None = None) -> None:
        self.report(Stage(stage, done, self.total if total is None else total))

    def _finish_file(self, position: tuple[object, int]) -> None:
        """Complete the file, if there is one, and record the position after it."""
        count = self.content.finish()
        if not count:
            return
        path = self.content.path
        for one in (path, *path.glob("*")):
            sync(one)
        self.size = size_on_disk([path])
        if self.verify:
            self._check(path, count)
        if self.is_sharded:
            name = f"{self.content.shard}-{self.place.version}{len(self.shards):06d}{path.suffix}"
            self.shards.append({"name": name, "bytes": self.size, "samples": count})
            note = {"position": position, "content": self.content.state()}
            self.place.keep(path, self.shards, self.content.index_of, note)

    def _check(self, path: Path, expected: int) -> None:
        """Read a file again, as the printed line will, so that the source compares all checksums.

        Raises PackError: the samples differ from what was written, or cannot be read.
        """

        def report(done: int) -> None:
            if not self.is_sharded:
                self._report("checking", done, expected)

        try:
            report(0)
            found = self.content.read_back(path, report)
            different = "" if found == expected else f"{found} of {expected} samples came back"
        except CorruptSource as exc:
            different = words(exc)
        except Exception as exc:  # does not mean damage: an option, a library, too many open files
            raise PackError(
                f"Reading back what was written, to check it, failed with {type(exc).__name__}: {words(exc)}. Fix the "
                "cause and run again; if it seems to be a bug in feedline, report it."
            ) from exc
        if different:
            raise PackError(
                f"The data read back is not what was written: {different}. The disk or memory of this machine may be "
                "faulty. The output did not get its name. Run again."
            )

    @contextmanager
    def _full_disk_explained(self, out: Path) -> Iterator[None]:
        """Turn a full disk into a PackError with advice."""
        try:
            yield
        except OSError as exc:
            if exc.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
                raise
            kept = f" to resume: complete shards are kept in {self.place.name}" if self.shards else ""
            raise PackError(
                f"There is no space left for {out.name}: {words(exc)}. Free some space and run again{kept}."
            ) from exc
