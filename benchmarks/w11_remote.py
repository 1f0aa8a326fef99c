"""Question: in which form should samples be kept in object storage?

Knob: how they are stored and read, and the number of workers. `webdataset`: shards through the webdataset package in
torch's loader (it fetches them with curl). `stream` and `random`: the same shards through `TarDataset`, from beginning
to end or every sample by a ranged request of its own. `objects`: an object per sample, one request after the other in
torch's loader; `async`: the same objects through a dataset with `async def __getitem__`.

Held still: a server on this machine that answers each request after 30 ms and sends at most 50 MB/s on one connection,
but accepts any number of connections, as object stores do. Samples are arrays of 3x32x32 float32 (12 KB), batches of
64.

How to read it: `x torch` is the ratio to the webdataset package. The server uses the same cores, which `CPU s per
1,000` does not count. Real stores sometimes answer more slowly, and have their own limits.

    python -m benchmarks.w11_remote
    python -m benchmarks.w11_remote --latency-ms 100 --mb-per-s 20 --workers 0 2
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import http.client
import io
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks import flags, workloads
from benchmarks.w8_tar import random, streamed, theirs, write_shards
from feedline.tools.measure import harness, rows

WAYS = ("webdataset", "stream", "random", "objects", "async")


def main(argv: Sequence[str] | None = None) -> int:
    parser = flags.parser(
        __doc__, engine=["process"], seconds=2.0, warmup=4, workers=[2], shards=16, samples=8192, batch_size=64
    )
    flags.choose(parser, "--way", WAYS)
    parser.add_argument("--latency-ms", type=float, default=30.0)
    parser.add_argument("--mb-per-s", type=float, default=50.0, help="of one connection (50)")
    flags.add_data(parser)
    arguments = parser.parse_args(argv)
    shards = write_shards("array", arguments.shards, arguments.samples, arguments.data)
    folder = Path(shards[0]).parent
    workloads.stored(folder, "objects", partial(write_objects, shards))
    with serving(folder, arguments) as port:
        outcomes = rows.measure(entries(shards, port, arguments), arguments)
    rows.publish("w11_remote", outcomes, arguments, columns=(rows.SAMPLES, *rows.COSTS))
    return 0


@contextlib.contextmanager
def serving(folder: Path, arguments: argparse.Namespace) -> Iterator[int]:
    """Run the server; yields its port."""
    names = (name for name in ("latency_ms", "mb_per_s", "link_mb_per_s") if hasattr(arguments, name))
    speed = [part for name in names for part in (f"--{name.replace('_', '-')}", str(getattr(arguments, name)))]
    command = [sys.executable, "-m", "benchmarks.store_program", "--folder", str(folder), *speed]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        try:
            yield int(server.stdout.readline())
        finally:
            server.stdin.close()


def entries(shards: list[str], port: int, arguments: argparse.Namespace) -> list[harness.Entry]:
    base, size, count = f"http://127.0.0.1:{port}", arguments.batch_size, arguments.samples
    addresses = [f"{base}/{Path(shard).name}" for shard in shards]
    made = []
    for workers in arguments.workers:
        engine = "inline" if workers == 0 else arguments.engine[0]
        # Any: loaders of several libraries.
        ways: dict[str, tuple[harness.Side, Callable[[], Any]]] = {
            "webdataset": (
                harness.Side(harness.TORCH, "webdataset"),
                partial(theirs, "array", addresses, workers, size, batched=False),
            ),
            "stream": (
                harness.Side(harness.FEEDLINE, f"{engine}, stream"),
                partial(streamed, "array", addresses, workers, size, engine),
            ),
            "random": (
                harness.Side(harness.FEEDLINE, f"{engine}, random"),
                partial(random, "array", addresses, workers, size, engine, index=Path(shards[0]).parent / "far"),
            ),
            "objects": (harness.Side("torch objects"), partial(one_by_one, port, count, workers, size)),
            "async": (
                harness.Side(harness.FEEDLINE, f"{engine}, async"),
                partial(at_once, port, count, workers, size, engine),
            ),
        }
        for way in arguments.way:
            side, make = ways[way]
            if way == "webdataset" and shutil.which("curl") is None:
                continue
            case: harness.Case = {"workers": workers}
            made.append(rows.steady(case, side, make, arguments, batch_size=size, length=count // size))
    return made


def write_objects(shards: list[str], folder: Path) -> None:
    """Write a file per sample."""
    from feedline.datasets import TarDataset

    folder.mkdir()
    samples: Any = TarDataset(shards, fields="npy", decode=False).stream()
    for number, data in enumerate(samples):
        (folder / f"{number}.npy").write_bytes(data)


class Objects:
    """An object per sample, fetched with the standard library over one connection per process."""

    def __init__(self, port: int, count: int) -> None:
        self.port = port
        self.count = count
        self.connection: http.client.HTTPConnection | None = None

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> NDArray[np.float32]:
        if self.connection is None:
            self.connection = http.client.HTTPConnection("127.0.0.1", self.port)
        self.connection.request("GET", f"/objects/{index}.npy")
        return _array(self.connection.getresponse().read())

    def __del__(self) -> None:
        if self.connection is not None:
            self.connection.close()


class AsyncObjects:
    """The same with coroutines, over as many connections as there are samples in a batch."""

    def __init__(self, port: int, count: int) -> None:
        self.port = port
        self.count = count
        # Any: reader and writer of idle connections.
        self.idle: list[Any] = []

    def __len__(self) -> int:
        return self.count

    async def __getitem__(self, index: int) -> NDArray[np.float32]:
        reader, writer = self.idle.pop() if self.idle else await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(f"GET /objects/{index}.npy HTTP/1.1\r\nHost: store\r\n\r\n".encode())
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(line for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:"))
        content = await reader.readexactly(int(length.split(b":")[1]))
        self.idle.append((reader, writer))
        return _array(content)

    async def aclose(self) -> None:
        for _, writer in self.idle:
            writer.close()
            await writer.wait_closed()


def _array(content: bytes) -> NDArray[np.float32]:
    array: NDArray[np.float32] = np.load(io.BytesIO(content))
    return array


def one_by_one(port: int, count: int, workers: int, size: int) -> harness.LoaderLike:
    side = harness.Side(harness.TORCH)
    return side.open(Objects(port, count), batch_size=size, shuffle=True, **harness.worker_arguments(workers))


def at_once(port: int, count: int, workers: int, size: int, engine: str) -> harness.LoaderLike:
    side = harness.Side(harness.FEEDLINE, engine)
    return side.open(AsyncObjects(port, count), batch_size=size, shuffle=True, **harness.worker_arguments(workers))


if __name__ == "__main__":
    sys.exit(main())
