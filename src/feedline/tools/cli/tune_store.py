"""`feedline tune s3://...`: what training from a store costs, for every way to shuffle. Only sizes are read."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from feedline.datasets.derived.formats import format_by_name
from feedline.datasets.framework.shards import expand
from feedline.datasets.storage.addresses import shown_address
from feedline.datasets.storage.disk_cache import PIECE_BYTES, check_limit, least_limit
from feedline.datasets.storage.remote import Remote
from feedline.datasets.storage.storage import Storage, protocol_of
from feedline.errors import BadOption
from feedline.insight.stats import aligned
from feedline.system.shown import printable
from feedline.system.sizes import byte_count, bytes_text

_BUFFER = 1000
"""The default of `stream(buffer=)`."""


@dataclass(frozen=True)
class Way:
    """A way to shuffle, and what it costs each machine per epoch."""

    code: str
    first_bytes: int
    """Bytes fetched in the first epoch."""
    later_bytes: int
    """Bytes fetched in later ones, when the cache is full."""
    requests: int
    """Requests of the first epoch."""
    moves: str
    """How far a sample moves."""


def run(arguments: argparse.Namespace) -> None:
    """Write a table of bytes and requests to standard output, or JSON."""
    given = [name for name in ("step_ms", "seconds", "batch_size", "plot") if getattr(arguments, name)]
    if given:
        raise BadOption(
            f"Leave out --{given[0].replace('_', '-')}: for shards in a store, costs are computed and nothing is tried."
        )
    cache_bytes = byte_count("--cache", arguments.cache or 0, least=0)
    if cache_bytes:
        check_limit("--cache", cache_bytes)
    sample_bytes = byte_count("--sample-bytes", arguments.sample_bytes)
    sizes, machines = shard_sizes(arguments.what), arguments.machines or 1
    ways = ways_of(sizes, cache_bytes, machines, sample_bytes)
    if arguments.json:
        report = {"shards": len(sizes), "bytes": sum(sizes), "ways": [vars(way) for way in ways]}
        sys.stdout.write(json.dumps(report) + "\n")
    else:
        sys.stdout.write(printable(_text(shown_address(arguments.what), sizes, cache_bytes, machines, ways)))


def shard_sizes(address: str) -> list[int]:
    """Return the size of each shard in bytes: from a listing, or with a request per shard where there is none.

    Raises SourceError: there are none, or the store cannot be reached; BadOption: the address names no shards.
    """
    if address.endswith("/"):
        if protocol_of(address) in ("http", "https"):
            raise BadOption(
                f"{shown_address(address)} is a folder, and web servers do not list them. Name the shards: "
                "https://host/shard-{000..099}.tar."
            )
        address += "*.tar"
    storage, sizes = Storage(), dict[str, int]()

    def listed(pattern: str) -> list[str]:
        found = storage.listed(pattern)
        sizes.update({name: version.size for name, version in found.items()})
        return list(found)

    def ask(name: str) -> int:
        blob = storage.open(name)
        try:
            return blob.size
        finally:
            blob.close()

    try:
        shards = expand(address, listed)
        if other := next((name for name in shards if format_by_name(name) not in (None, "tar")), None):
            raise BadOption(f"{shown_address(other)} is not a tar shard. Only the costs of tar streams are computed.")
        unknown = [name for name in shards if name not in sizes]
        with ThreadPoolExecutor(Remote().requests, "feedline-sizes") as threads:
            sizes.update(zip(unknown, threads.map(ask, unknown), strict=True))
        return [sizes[name] for name in shards]
    finally:
        storage.close()


def ways_of(sizes: Sequence[int], cache_bytes: int, machines: int, sample_bytes: int | None) -> list[Way]:
    """Return the ways to shuffle. Without the size of a sample, the cost of shuffling all samples is unknown.

    In later epochs a machine is served what its cache held when the epoch began. Sticky shards are all its own; of
    other shards, and of random samples, it is sent those that it holds as rarely as any others.
    """
    total, held = sum(sizes), min(sum(sizes), cache_bytes)
    own, requests = total // machines, sum(-(-size // PIECE_BYTES) for size in sizes) // machines
    sticky, later = max(0, own - cache_bytes), (total - held) // machines
    ways = [
        Way('.stream(shuffle="shards")', own, sticky, requests, "with its shard"),
        Way(".stream(shuffle=True)", own, sticky, requests, f"with its shard, and by {_BUFFER:,} places"),
    ]
    if machines > 1:
        ways.append(Way(".stream(shuffle=True, sticky=False)", own, later, requests, "as above, to other ranks, too"))
    if sample_bytes is not None:  # whole pieces fill the cache, then every other sample is a request
        requests = held // PIECE_BYTES + later // sample_bytes
        ways.append(Way("DataLoader(dataset, shuffle=True)", held + later, later, requests, "anywhere"))
    return ways


def _text(address: str, sizes: list[int], cache_bytes: int, machines: int, ways: list[Way]) -> str:
    total = sum(sizes)
    head = f"{address}: {len(sizes):,} shards, {bytes_text(total)}"
    cache = f"a cache of {bytes_text(cache_bytes)}" if cache_bytes else "no cache"
    table = [["", "fetched in epoch 1", "in later epochs", "requests", "a sample moves"]]
    for way in ways:
        fetched = [bytes_text(way.first_bytes), bytes_text(way.later_bytes)]
        table.append([way.code, *fetched, f"{way.requests:,}", way.moves])
    lines = [
        head,
        f"Each of {machines} machines, with {cache}, needs at least:" if machines > 1 else f"With {cache}:",
        "",
        aligned(table),
    ]
    if not cache_bytes:
        useful = bytes_text(max(0.3 * total / machines, least_limit())).replace(" ", "")
        lines += ["", f"--cache {useful} shows what a cache on each machine saves."]
    return "\n".join(lines) + "\n"
