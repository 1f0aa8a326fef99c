"""Streaming shards from object storage: tar shards are read over HTTP, kept on the local disk, and resumed.

    python examples/object_storage.py

Shows: `TarDataset(...).stream()` reads shards front to back in large ranges, a few of them ahead. `Remote(cache=...)`
keeps what was read on a local disk: the second epoch makes one small request for each shard, to see that it has not
changed. The state of the loader is a few numbers, and a loader that loads it continues in the middle of a shard.
Workers are threads here, because waiting for a network releases the GIL. This script has a small web server, which
answers range requests and counts what it sends. For a real store, change the address and nothing else:
`s3://bucket/shard-{000..007}.tar` needs `pip install 'feedline[s3]'`, `gs://` needs `feedline[gs]`.

Look at: the "requests" and megabytes of each epoch, and the samples of the "resumed" loader, which are exactly the
remaining ones.
"""

from __future__ import annotations

import contextlib
import email.utils
import io
import re
import tarfile
import tempfile
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np

from feedline import DataLoader
from feedline.datasets import Remote, TarDataset

SHARDS, PER_SHARD, BATCH = 8, 80, 32


def write_shards(folder: Path) -> None:
    """Write shards of arrays with a label."""
    rng = np.random.default_rng(0)
    for shard in range(SHARDS):
        with tarfile.open(folder / f"shard-{shard:03d}.tar", "w") as file:
            for number in range(shard * PER_SHARD, (shard + 1) * PER_SHARD):
                array = io.BytesIO()
                np.save(array, rng.integers(0, 256, (3, 64, 64), np.uint8))
                for name, content in ((f"{number:06d}.npy", array.getvalue()), (f"{number:06d}.cls", b"%d" % number)):
                    info = tarfile.TarInfo(name)
                    info.size = len(content)
                    file.addfile(info, io.BytesIO(content))


class Store(ThreadingHTTPServer):
    """Serves the files of a folder in ranges, as object storage does, and counts what it sends."""

    def __init__(self, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.folder, self.requests, self.sent = folder, 0, 0

    def taken(self) -> str:
        """Return what was asked for since the last call."""
        text = f"{self.requests} requests, {self.sent / 1e6:.1f} MB"
        self.requests = self.sent = 0
        return text


class Handler(BaseHTTPRequestHandler):
    """Answers one range of a file."""

    server: Store
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        path = self.server.folder / self.path.lstrip("/")
        data = path.read_bytes()
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", "bytes=0-"))
        assert asked is not None
        first, last = int(asked[1]), min(int(asked[2] or len(data)), len(data) - 1)
        self.send_response(206)
        self.send_header("Content-Range", f"bytes {first}-{last}/{len(data)}")
        self.send_header("Content-Length", str(last + 1 - first))
        self.send_header("Last-Modified", email.utils.formatdate(path.stat().st_mtime, usegmt=True))
        self.end_headers()
        self.wfile.write(data[first : last + 1])
        self.server.requests += 1
        self.server.sent += last + 1 - first

    def log_message(self, *arguments: Any) -> None:
        """Stay silent."""


@contextlib.contextmanager
def running(store: Store) -> Iterator[str]:
    """Run the server in a thread; yields its address."""
    thread = threading.Thread(target=store.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{store.server_port}"
    finally:
        store.shutdown()
        store.server_close()


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder, cache = Path(name) / "bucket", Path(name) / "cache"
        folder.mkdir()
        write_shards(folder)
        store = Store(folder)
        with running(store) as address:

            def make_loader() -> DataLoader[Any, Any]:
                shards = TarDataset(f"{address}/shard-{{000..007}}.tar", ("npy", "cls"), remote=Remote(cache=cache))
                stream = shards.stream(shuffle=True, buffer=100, seed=0)
                return DataLoader(stream, BATCH, num_workers=2, engine="thread")

            loader = make_loader()
            sent = []
            for epoch in range(2):
                labels = [label for _, batch in loader for label in batch.tolist()]
                assert sorted(labels) == list(range(SHARDS * PER_SHARD))
                sent.append(store.sent)
                print(f"epoch {epoch}: {len(labels)} samples, first {labels[:5]}; {store.taken()}")

            loader = make_loader()
            batches = iter(loader)
            seen = [label for _ in range(7) for label in next(batches)[1].tolist()]
            state = loader.state_dict()  # save it with the model
            loader.close()
            resumed = make_loader()
            resumed.load_state_dict(state)
            rest = [label for _, batch in resumed for label in batch.tolist()]
            print(f"stopped after {len(seen)} samples; the resumed loader delivered the other {len(rest)}")
            assert sorted(seen + rest) == list(range(SHARDS * PER_SHARD))
            assert sent[1] < sent[0] / 5


if __name__ == "__main__":
    main()
