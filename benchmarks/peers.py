"""Other libraries as loaders, for the benchmarks of language-model data; those that are not installed are left out."""

from __future__ import annotations

import argparse
import importlib.util
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

AHEAD = 2
"""Batches that are made ahead for each worker, as torch's loader has it by default."""


def add_flag(parser: argparse.ArgumentParser, names: Sequence[str]) -> None:
    """Add `--peers`: none, some or all of them."""
    parser.add_argument("--peers", nargs="*", choices=list(names), default=list(names), help="(all that are installed)")


def installed(asked: Sequence[str], packages: dict[str, str]) -> list[str]:
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
        length: int,
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
