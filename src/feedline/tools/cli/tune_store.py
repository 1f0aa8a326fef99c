"""`feedline tune s3://...`: what training from a store costs, for every way to shuffle. Only sizes are read."""

from __future__ import annotations

import argparse
import json
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

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
from feedline.tools.tune.traffic import Machine, Reading

_MOST = 4000
"""The most shards to simulate; if there are more, every n-th one stands for the rest."""
_BUFFER = 1000
"""The default of `stream(buffer=)`."""


@dataclass(frozen=True)
class Way:
    """A way to shuffle, and what it costs each machine per epoch."""

    code: str
    first_bytes: int
    """Bytes fetched in the first epoch."""
    later_bytes: int
    """Bytes fetched in the third one, when the cache is full."""
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
    sizes = shard_sizes(arguments.what)
    reading = Reading(
        sizes, cache_bytes, machines=arguments.machines or 1, ranks=arguments.ranks or 1, workers=arguments.workers or 2
    )
    ways = ways_of(reading, sample_bytes)
    if arguments.json:
        report = {"shards": len(sizes), "bytes": sum(sizes), "ways": [vars(way) for way in ways]}
        sys.stdout.write(json.dumps(report) + "\n")
    else:
        sys.stdout.write(printable(_text(shown_address(arguments.what), reading, ways)))


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


def ways_of(reading: Reading, sample_bytes: int | None) -> list[Way]:
    """Return the ways to shuffle. Without the size of a sample, the cost of shuffling all samples is unknown."""
    sticky = replace(reading, sticky=True)
    ways = [_stream('.stream(shuffle="shards")', sticky, "with its shard")]
    ways.append(replace(ways[0], code=".stream(shuffle=True)", moves=f"with its shard, and by {_BUFFER:,} places"))
    if reading.machines > 1:
        ways.append(_stream(".stream(shuffle=True, sticky=False)", reading, "as above, to other ranks, too"))
    if sample_bytes is not None:
        ways.append(_random_access(reading, sample_bytes))
    return ways


def _random_access(reading: Reading, sample_bytes: int) -> Way:
    """Return what random access costs: whole pieces fill the cache, then every other sample is a request."""
    total = sum(reading.sizes)
    held = min(total, reading.cache_bytes)
    later = round((total - held) / reading.machines)
    requests = held // PIECE_BYTES + later // sample_bytes
    return Way("DataLoader(dataset, shuffle=True)", held + later, later, requests, "anywhere")


def _stream(code: str, reading: Reading, moves: str) -> Way:
    # The simulation's time grows with the square of the number of shards.
    few = replace(
        reading,
        sizes=reading.sizes[:: (step := max(1, len(reading.sizes) // _MOST))],
        cache_bytes=reading.cache_bytes // step,
    )
    machine, scale = Machine(few), sum(reading.sizes) / max(1, sum(few.sizes))
    first, _, later = (machine.epoch() for _ in range(3))
    return Way(
        code,
        round(first.fetched_bytes * scale),
        round(later.fetched_bytes * scale),
        round(first.requests * scale),
        moves,
    )


def _text(address: str, reading: Reading, ways: list[Way]) -> str:
    total, machines = sum(reading.sizes), reading.machines
    head = f"{address}: {len(reading.sizes):,} shards, {bytes_text(total)}"
    cache = f"a cache of {bytes_text(reading.cache_bytes)}" if reading.cache_bytes else "no cache"
    table = [["", "fetched in epoch 1", "in later epochs", "requests", "a sample moves"]]
    for way in ways:
        fetched = [bytes_text(way.first_bytes), bytes_text(way.later_bytes)]
        table.append([way.code, *fetched, f"{way.requests:,}", way.moves])
    lines = [
        head,
        f"Each of {machines} machines, with {cache}:" if machines > 1 else f"With {cache}:",
        "",
        aligned(table),
    ]
    if not reading.cache_bytes:
        useful = bytes_text(max(0.3 * total / machines, least_limit())).replace(" ", "")
        lines += ["", f"--cache {useful} shows what a cache on each machine saves."]
    return "\n".join(lines) + "\n"
