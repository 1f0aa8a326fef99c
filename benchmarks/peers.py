"""The loaders that a script compares: torch's, feedline's with each of its engines, and those of other libraries."""

from __future__ import annotations

import argparse
import importlib.util
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from feedline.tools.measure import harness, rows

AHEAD = 2
"""Batches that are made ahead for each worker, as torch's loader has it by default."""
ENDLESS = 1 << 40
"""The length of a stream that has no end."""


@dataclass(frozen=True)
class Loading:
    """How one of the loaders is to be opened."""

    workers: int
    batch_size: int
    engine: str | None = None
    """feedline's engine; None for other loaders."""

    @property
    def options(self) -> dict[str, object]:
        """The arguments that torch's loader and feedline's have in common."""
        return {"batch_size": self.batch_size, **harness.worker_arguments(self.workers)}

    # object: a dataset, and arguments of torch's DataLoader.
    def open(self, dataset: object, **arguments: object) -> harness.LoaderLike:
        """Open feedline's loader if there is an engine, and otherwise torch's."""
        side = harness.Side(harness.TORCH if self.engine is None else harness.FEEDLINE, self.engine)
        return side.open(dataset, **{**self.options, **arguments})


# Any: a loader of any library.
Opened = Callable[[Loading], Any]


def entries(
    arguments: argparse.Namespace, case: harness.Case, ways: Mapping[str, Opened], *, length: int | None = None
) -> Iterator[harness.Entry]:
    """Yield an entry for each way to load and each number of workers, and for each engine if the way is feedline's.

    Args:
        arguments: the flags.
        case: what the loaders share.
        ways: how each is opened, by the library and a remark, such as "feedline stream".
        length: batches in an epoch, for loaders that do not know it.
    """
    for workers in arguments.workers:
        for name, way in ways.items():
            library, _, remark = name.partition(" ")
            engines: Sequence[str | None] = [None]
            if library == harness.FEEDLINE:
                engines = ["inline"] if workers == 0 else arguments.engine
            for engine in engines:
                side = harness.Side(library, ", ".join(filter(None, (engine, remark))) or None)
                loading = Loading(workers, arguments.batch_size, engine)
                yield rows.steady(
                    {**case, "workers": workers},
                    side,
                    lambda way=way, loading=loading: way(loading),
                    arguments,
                    batch_size=arguments.batch_size,
                    length=length,
                )


def add_flag(parser: argparse.ArgumentParser, names: Sequence[str]) -> None:
    """Add `--peers`: none, some or all of them."""
    parser.add_argument("--peers", nargs="*", choices=list(names), default=list(names), help="(all that are installed)")


def installed(asked: Sequence[str], packages: Mapping[str, str]) -> list[str]:
    """Return the peers whose package can be imported, and print a note about the others.

    Args:
        asked: names of peers.
        packages: the package that each peer needs, if it is not called like the peer.
    """
    found = []
    for name in asked:
        package = packages.get(name, name)
        if importlib.util.find_spec(package) is None:
            print(f"{name} is left out: {package} is not installed.", file=sys.stderr)
        else:
            found.append(name)
    return found


# Any: the module.
def grain() -> Any:
    """Import Grain, whose workers need its flags, as programs of Google's set them."""
    import grain
    from absl import flags

    flags.FLAGS.mark_as_parsed()
    return grain


# Any: batches of any kind.
class Peer:
    """What another library iterates over, as the harness expects a loader.

    Args:
        opened: begins an epoch.
        workers: the number of worker processes.
        length: the number of batches in an epoch.
        convert: makes of each batch what the other loaders deliver.
    """

    prefetch_factor = AHEAD

    def __init__(
        self,
        opened: Callable[[], Iterable[Any]],
        workers: int,
        length: int = ENDLESS,
        convert: Callable[[Any], Any] | None = None,
    ) -> None:
        self.num_workers = workers
        self._opened = opened
        self._length = length
        self._convert = convert

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[Any]:
        batches = self._opened()
        return iter(batches) if self._convert is None else map(self._convert, batches)
