"""The loaders of other libraries that scripts compare."""

from __future__ import annotations

import argparse
import importlib.util
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from feedline.tools.measure import harness
from feedline.tools.measure.harness import Loading
from feedline.tools.measure.rows import Way

AHEAD = 2
"""Batches that are made ahead for each worker, as torch's loader has it by default."""
ENDLESS = 1 << 40
"""The length of a stream that has no end."""


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
