"""Question: how fast do shuffled samples come from object storage, and how many bytes do two epochs fetch?

Knob: the library, each over its own format: `TarDataset(...).stream(shuffle=True)` over tar shards, MosaicML Streaming
over MDS shards, litdata over its chunks, and the webdataset package over tar shards, which it fetches with curl. And
what samples are: JPEG files as bytes, which are not decoded, or windows of tokens as arrays. `random` is feedline's
random access to the samples of tar shards. `objects` and `async` read an object per sample: one request after the other
in torch's loader, and all of a batch at once with `async def __getitem__`.

Held still: a server on this machine that speaks S3, answers each request after 30 ms and sends 40 MB/s over all
connections together; `--mb-per-s` also limits each of them. Two workers, batches of 32, a new process with an empty
cache for each measurement, and a cache that may hold 30 % of the dataset. About four shards are shuffled together:
this is MosaicML's `shuffle_block_size`, and feedline and webdataset have half of it as each worker's buffer. litdata
shuffles the samples within a chunk. MosaicML downloads eight batches ahead per worker, and litdata two chunks: their
defaults.

How to read it: `first` is seconds from opening the dataset to the first batch. `cold` is samples per second of the
whole first epoch, from opening the dataset, and `link` is the share of the bandwidth that this epoch used. `again` is
samples per second of the second epoch. `fetched` is what the server sent in both epochs, as a multiple of the dataset:
without a cache it is 2, and a cache can save its own size at most: 1.7 is the least possible. `held` is the largest
size of the cache, as a share of the dataset. If `link` is near 100 %, the bandwidth is the limit. If not, compare
`cores`, which the loader and its workers used, and `server cores` with the cores of the machine. If these are low as
well, the loader waits for answers. `failed` is how often a measurement had to be repeated because the other library
raised an error.

    python -m benchmarks.w20_object_storage
    python -m benchmarks.w20_object_storage --mb-per-s 10 --way feedline mosaicml --kind jpeg
    python -m benchmarks.w20_object_storage --way webdataset feedline random objects async --link-mb-per-s inf
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import importlib
import importlib.util
import json
import math
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import flags, peers, program, store_data
from benchmarks.store_data import Data
from benchmarks.store_loaders import WAYS, Job, Way, prepare
from benchmarks.store_program import COUNTS, serving
from feedline.tools.measure import harness, rows

EPOCHS = 2
TRIES = 2
LOOK_S = 0.1
"""How often the size of the cache is looked at."""
COLUMNS = (
    rows.Column("samples_per_s", "cold\nsamples/s", digits=0, with_range=True, better="higher"),
    rows.Column("link_share", "link\n%", 100, digits=0),
    rows.Column("again_per_s", "again\nsamples/s", digits=0, with_range=True),
    rows.Column("first_s", "first\ns", digits=2, with_range=True),
    rows.Column("fetched", "fetched\nx data", digits=2, with_range=True),
    rows.Column("held", "held\n%", 100, digits=0),
    rows.Column("requests", "requests", digits=0),
    rows.Column("cores", "cores", digits=2),
    rows.Column("server_cores", "server\ncores", digits=2),
    rows.Column("failed", "failed", digits=0),
)


def main(argv: Sequence[str] | None = None) -> int:
    parser = flags.parser(__doc__, rounds=3, shards=40, jpegs=4800, windows=14_400, window=8192, mixed_shards=4)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=32)
    flags.choose(parser, "--way", list(WAYS))
    flags.choose(parser, "--kind", store_data.KINDS)
    parser.add_argument("--cache-share", type=float, default=0.3, help="of the dataset, that the cache may hold (0.3)")
    parser.add_argument("--latency-ms", type=float, default=30.0)
    parser.add_argument("--link-mb-per-s", type=float, default=40.0, help="of all connections together (40)")
    parser.add_argument("--mb-per-s", type=float, default=math.inf, help="of one connection (no limit)")
    flags.add_data(parser)
    arguments = parser.parse_args(argv)
    found = peers.installed(arguments.way, {name: way.package for name, way in WAYS.items()})
    chosen = {name: WAYS[name] for name in found}
    folders = {
        (kind, way.form): store_data.write(data_of(kind, arguments), way.form, arguments.data)
        for kind in arguments.kind
        for way in chosen.values()
    }
    if not folders:
        return 1
    root = next(iter(folders.values())).parents[2]
    speed = {name: getattr(arguments, name) for name in ("latency_ms", "mb_per_s", "link_mb_per_s")}
    with serving(root, **speed) as port:
        entries = [
            entry_of(name, way, data_of(kind, arguments), folders[kind, way.form], port, arguments)
            for kind in arguments.kind
            for name, way in chosen.items()
        ]
        outcomes = rows.measure(entries, arguments)
    peer = next((way.side.library for way in chosen.values() if way.side.library != harness.FEEDLINE), harness.FEEDLINE)
    rows.publish("w20_object_storage", outcomes, arguments, columns=COLUMNS, peer=peer, details=False)
    return 0


def data_of(kind: str, arguments: argparse.Namespace) -> Data:
    samples = arguments.jpegs if kind == "jpeg" else arguments.windows
    return Data(kind, arguments.shards, samples, arguments.window)


def entry_of(name: str, way: Way, data: Data, folder: Path, port: int, arguments: argparse.Namespace) -> harness.Entry:
    sizes = store_data.object_bytes(folder)
    run = partial(
        program.run,
        "w20_object_storage",
        way.side,
        way=name,
        data=asdict(data),
        objects=list(sizes),
        sizes=list(sizes.values()),
        port=port,
        workers=arguments.workers,
        batch_size=arguments.batch_size,
        mixed_shards=arguments.mixed_shards,
        cache_bytes=int(sum(sizes.values()) * arguments.cache_share),
        link=arguments.link_mb_per_s * 1e6,
    )
    case: harness.Case = {"samples": data.kind, "workers": arguments.workers}
    once = partial(attempt, way.side, partial(run, epochs=EPOCHS))
    return harness.Entry(case, way.side, partial(harness.watched, once), partial(warm_up, run))


def attempt(side: harness.Side, run: Callable[[], harness.Figures]) -> harness.Figures:
    """Measure, and once more if another library fails. feedline must not fail."""
    for failed in range(TRIES):
        try:
            return {**run(), "failed": float(failed)}
        except (RuntimeError, subprocess.TimeoutExpired) as exc:
            if side.library == harness.FEEDLINE:
                raise
            print(f"{side.name} failed: {str(exc).strip().splitlines()[-1][:200]}", file=sys.stderr)
    return {**dict.fromkeys(column.figure for column in COLUMNS), "failed": float(TRIES)}


def warm_up(run: partial[harness.Figures]) -> None:
    """Start a program that imports everything and reads nothing."""
    run(epochs=0)


IMPORTED = (
    "torch.utils.data",
    "feedline.loader.torch",
    "feedline.loader.torch_batches",
    "feedline.datasets.formats.tar",
    "feedline.workers.processes.engine",
    "s3fs",
    "boto3",
)
"""Loaders and clients of the store, whichever is measured. feedline imports parts when they are needed; the packages of
the others import all of theirs at once."""


# Any: fields of `Data`, and of `Job`.
def measure(
    side: harness.Side, way: str, data: dict[str, Any], sizes: list[int], epochs: int, link: float, **options: Any
) -> harness.Figures:
    """Load all samples for some epochs, in this program."""
    for name in (*IMPORTED, WAYS[way].package):
        if importlib.util.find_spec(name) is not None:
            importlib.import_module(name)  # before the clock starts, clients of the store included
    if not epochs:
        return {}
    with tempfile.TemporaryDirectory(prefix="feedline-store-", ignore_cleanup_errors=True) as folder:
        job = Job(data=Data(**data), cache=Path(folder), **options)
        prepare(job)
        with Watch(job.cache) as watch:
            figures = load(WAYS[way], job, epochs, link, sum(sizes))
        figures["held"] = watch.most / sum(sizes)
    return figures


def load(way: Way, job: Job, epochs: int, link: float, size: int) -> harness.Figures:
    """Open a loader and iterate over it."""
    counts, times, first_s, cpu_s = [Sent.read(job.port)], [time.perf_counter()], 0.0, _cpu_s()
    loader = way.opened(job)
    for epoch in range(epochs):
        seen = []
        for batch in loader:
            first_s = first_s or time.perf_counter() - times[0]
            seen += numbers(job.data.kind, batch)
        times.append(time.perf_counter())
        counts.append(Sent.read(job.port))
        check(seen, job.data.samples, f"epoch {epoch} of {way.side.name}")
    harness.close(loader)
    took_s, cold_s, again_s = times[-1] - times[0], times[1] - times[0], times[-1] - times[-2]
    return {
        "samples_per_s": job.data.samples / cold_s,
        "again_per_s": job.data.samples / again_s if epochs > 1 else None,
        "first_s": first_s,
        "link_share": (counts[1].count - counts[0].count) / cold_s / link,
        "fetched": (counts[-1].count - counts[0].count) / size,
        "requests": float(counts[-1].requests - counts[0].requests),
        "cores": (_cpu_s() - cpu_s) / took_s,
        "server_cores": (counts[-1].cpu_s - counts[0].cpu_s) / took_s,
    }


@dataclass(frozen=True)
class Sent:
    """What the server has sent so far."""

    requests: int
    count: int
    """Bytes of objects."""
    cpu_s: float
    """CPU seconds of the server."""

    @classmethod
    def read(cls, port: int) -> Sent:
        """Ask the server."""
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port)) as connection:
            connection.request("GET", COUNTS)
            found = json.loads(connection.getresponse().read())
        return cls(found["requests"], found["bytes"], found["cpu_s"])


class Watch:
    """Looks at the size of a folder from time to time, in a thread."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.most = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look, name="cache-size")

    def _look(self) -> None:
        while not self._ended.wait(LOOK_S):
            self.most = max(self.most, held_bytes(self.folder))

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._ended.set()
        self._thread.join()


def held_bytes(folder: Path) -> int:
    """Return how many bytes the files of a folder have. Files may come and go meanwhile."""
    total = 0
    for root, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                total += os.stat(os.path.join(root, name)).st_size
    return total


# Any: a batch of any loader.
def numbers(kind: str, batch: Any) -> list[int]:
    """Return the numbers of the samples in a batch."""
    if kind == "jpeg":
        return list(batch[1])
    first, second = batch[:, 0].tolist(), batch[:, 1].tolist()
    return [low + (high << 16) for low, high in zip(first, second, strict=True)]


def check(seen: list[int], count: int, what: str) -> None:
    """Raise RuntimeError unless every sample came; some libraries repeat a few, so that workers have equal numbers."""
    if set(seen) != set(range(count)):
        raise RuntimeError(f"{what}: {len(set(seen))} different samples came instead of {count}")


def _cpu_s() -> float:
    """Return the CPU seconds of this process and of its children that have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


if __name__ == "__main__":
    sys.exit(program.main(main, measure))
