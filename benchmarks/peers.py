"""The loaders that a script compares: torch's, feedline's with each of its engines, and those of other libraries."""

from __future__ import annotations

import argparse
import importlib.util
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any, TypeVar

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


Way = TypeVar("Way")
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
    for side, way, loading in sides(arguments, ways):
        opened = partial(way, loading)
        own = {**case, "workers": loading.workers}
        yield rows.steady(own, side, opened, arguments, batch_size=arguments.batch_size, length=length)


def sides(arguments: argparse.Namespace, ways: Mapping[str, Way]) -> Iterator[tuple[harness.Side, Way, Loading]]:
    """Yield each way to load with each number of workers and, if it is feedline's, with each engine."""
    for workers in arguments.workers:
        for name, way in ways.items():
            library, _, remark = name.partition(" ")
            engines: Sequence[str | None] = [None]
            if library == harness.FEEDLINE:
                engines = ["inline"] if workers == 0 else arguments.engine
            for engine in engines:
                side = harness.Side(library, ", ".join(filter(None, (engine, remark))) or None)
                yield side, way, Loading(workers, arguments.batch_size, engine)


def add_flag(parser: argparse.ArgumentParser, ways: Iterable[str]) -> None:
    """Add `--peers`: none, some or all of the ways to load that are neither torch's nor feedline's."""
    names = [name for name in ways if name.split()[0] not in (harness.TORCH, harness.FEEDLINE)]
    parser.add_argument("--peers", nargs="*", choices=names, default=names, help="(all that are installed)")


def chosen(
    arguments: argparse.Namespace, ways: Mapping[str, Way], packages: Mapping[str, str] = MappingProxyType({})
) -> dict[str, Way]:
    """Return torch's and feedline's ways to load, and those of `--peers` that are installed.

    Args:
        arguments: the flags.
        ways: what there is to choose from, by name.
        packages: the package that a way needs, if it is not called like it.
    """
    found = installed(arguments.peers, packages)
    return {name: way for name, way in ways.items() if name in found or name.split()[0] in ("torch", "feedline")}


def installed(asked: Sequence[str], packages: Mapping[str, str]) -> list[str]:
    """Return the peers whose package can be imported, and print a note about the others."""
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


# object: a dataset that has a length.
def drawn(make: Callable[[], object], loading: Loading) -> harness.LoaderLike:
    """Open a loader over samples of a small dataset, drawn with replacement."""
    from torch.utils.data import RandomSampler

    dataset: Any = make()
    return loading.open(dataset, sampler=RandomSampler(dataset, replacement=True, num_samples=1 << 20))


# Any: a dataset of Grain's.
def of_grain(stream: Any, loading: Loading) -> Peer:
    """Return what Grain iterates over, made in processes if there are workers."""
    import grain

    if loading.workers:
        options = grain.MultiprocessingOptions(num_workers=loading.workers, per_worker_buffer_size=AHEAD)
        stream = stream.mp_prefetch(options)
    return Peer(lambda: stream, loading.workers)


# Any: nodes of torchdata's.
def mapped(source: Any, function: Callable[[Any], Any], loading: Loading) -> Any:
    """Map a node of torchdata's, in processes if there are workers."""
    from torchdata import nodes

    if loading.workers:
        return nodes.ParallelMapper(source, function, num_workers=loading.workers, method="process")
    return nodes.Mapper(source, function)


def of_nodes(batches: Any, loading: Loading, length: int = ENDLESS) -> Peer:
    """Return the loader of torchdata's nodes, which prefetches if there are workers."""
    from torchdata import nodes

    loader = nodes.Loader(nodes.Prefetcher(batches, prefetch_factor=AHEAD) if loading.workers else batches)
    return Peer(lambda: loader, loading.workers, length)


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
