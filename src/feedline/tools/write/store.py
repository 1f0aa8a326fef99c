"""The place of an output in an object store.

A shard is written to a local temporary file, uploaded by fsspec, compared with what the store says it has, and deleted.
Threads upload up to two shards while the next one is being written; each writes the job file when its shard and all
shards before it are uploaded. The manifest comes last: without one, the output is not complete.

A run that replaces an older output gives its shards other names, so that the older output can be read until the new
manifest takes its place. Only then are the older shards deleted.

The store holds, below the address of the output:

    shard-000000.tar, ...     the shards; shard-v1-000000.tar, ... if they replaced others
    .index/shard-000000.tar   the index of each tar shard
    .packing/job.json         the job file, from the beginning until the output is complete
    feedline.json             the manifest

The output is listed once, at the start. A shard takes a fixed number of requests, however many there are.
"""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import tempfile
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from hashlib import md5
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from feedline.datasets.framework.checksums import SEAL
from feedline.datasets.framework.manifest import FACTS, INDEX_FOLDER, UNFINISHED, manifest_in
from feedline.datasets.storage.addresses import shown_url
from feedline.datasets.storage.remote import Remote
from feedline.datasets.storage.storage import Storage, protocol_of, version_of
from feedline.errors import BadOption, CorruptSource, FeedlineWarning, PackError, SourceError, warn_user
from feedline.system.failures import words
from feedline.system.shown import counted
from feedline.tools.write.place import Entry, Indexing, Place
from feedline.types import JsonObject

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

T = TypeVar("T")

_SHARD = re.compile(rf"(?:\{INDEX_FOLDER}/)?shard-(?:v(?P<version>\d+)-)?\d{{6,}}\.\w+", re.ASCII)
"""Names of shards and of their indices."""
_UPLOADS = 2
"""The most shards that are uploaded at the same time. A guess: each of them is sent in several parts at a time."""
_PART, _PARTS = 1 << 24, 10
"""Bytes per part of an upload to S3, and the most parts in memory at a time. Guesses."""
_MOST_PARTS = 10_000
"""Parts that S3 allows."""
_TRIES = 5
"""How often s3fs tries a single request: one that fails must not repeat the other parts of an upload."""


class StorePlace(Place):
    """A folder in a store.

    Raises BadOption: something is there already, or a different job left data there; PackError: the store refuses.

    Args:
        address: the address of the output.
        job: as for `Place`.
        remote: how the store is reached.
        restart: True to start over, discarding what an earlier run left.
        overwrite: True to replace an older output, which can be read until the new one is complete.
        verify: True to compare the content of uploads, not only the size.
    """

    def __init__(
        self, address: str, job: JsonObject, remote: Remote, *, restart: bool, overwrite: bool, verify: bool
    ) -> None:
        super().__init__(job)
        self._address = address.rstrip("/")
        self.name = shown_url(self._address)
        self._verify = verify
        self._saved = 0
        """Complete shards in the job file."""
        self._stale: set[str] = set()
        """Shards and indices of the output that is being replaced."""
        self._uploaded: set[str] = set()
        """Shards and indices that an interrupted run uploaded, perhaps also some that the job file does not name."""
        self._pending: deque[Future[None]] = deque()
        """The uploads that have begun, in order."""
        self._storage = Storage(remote)
        self._pool = ThreadPoolExecutor(_UPLOADS, "feedline-upload")
        self.folder = Path(tempfile.mkdtemp(prefix="feedline-pack-"))
        try:
            with self._explained():
                self._begin(restart=restart, overwrite=overwrite)
        except BaseException:
            self.close()
            raise

    def _begin(self, *, restart: bool, overwrite: bool) -> None:
        found = self._listed()
        packed = self._packed() if FACTS in found else None
        output = set[str]() if packed is None else {FACTS, *_with_indices(packed)}
        # Shards that no manifest names are feedline's only beside the job file, which is written before them.
        is_left = UNFINISHED in found
        others = found.keys() - output - ({UNFINISHED, *filter(_SHARD.fullmatch, found)} if is_left else set())
        if others:
            raise BadOption(
                f"{self.name} holds objects that feedline did not write, or that are damaged, such as {min(others)!r}, "
                "and nothing is packed among them. Give another address, or remove them."
            )
        left = self._left_in(self._storage.contents(self._at(UNFINISHED))) if is_left and not restart else None
        names = [] if left is None else [str(one["name"]) for one in left["shards"]]
        is_delivered = names == packed  # its run was killed after the manifest, before it had deleted the rest
        if left is not None and is_delivered and left["job"] != self._job:
            left = None
        if packed is not None and not overwrite and (left is None or not is_delivered):
            resumed = " and resume the interrupted run that was replacing it" if left is not None else ""
            raise BadOption(
                f"{self.name} exists already. Use --overwrite (overwrite=True) to replace it{resumed}, or give another "
                "address."
            )
        if left is not None:
            self._check_job(left)
        if left is not None and all(found.get(one["name"]) == one["bytes"] for one in left["shards"]):
            self.left, self._saved, version = left, len(names), _version_of(names[0])
        else:
            self._note({}, [])  # the shards of the interrupted run mean nothing from here on
            self._delete(found.keys() - output - {UNFINISHED})
            found = {name: size for name, size in found.items() if name in output}
            version = max((_version_of(name) + 1 for name in packed or ()), default=0)
        self._uploaded = {name for name in found if _SHARD.fullmatch(name) and _version_of(name) == version}
        self._stale = {*filter(_SHARD.fullmatch, found)} - self._uploaded
        self.version = f"v{version}-" if version else ""

    def _packed(self) -> list[str] | None:
        """Return the names of the shards of the output that is there; None if its manifest is damaged."""
        try:
            manifest = manifest_in(self._address, self._storage)
        except CorruptSource:
            return None
        return None if manifest is None or SEAL not in manifest.stored else [shard.name for shard in manifest.shards]

    def _note(self, note: JsonObject, entries: list[Entry]) -> None:
        super()._note(note, entries)
        self._saved = len(entries)

    def keep(self, shard: Path, entries: list[Entry], index_of: Indexing, note: JsonObject) -> None:
        while len(self._pending) >= _UPLOADS:
            self._settle_one()
        entries = list(entries)  # further shards are added meanwhile
        uploading = shard.with_name(f"uploading-{entries[-1]['name']}")
        os.replace(shard, uploading)
        before = self._pending[-1] if self._pending else None

        def act() -> None:
            self._keep_shard(uploading, entries[-1], index_of)
            if before is not None:
                before.result()  # raises what it raised: no job file names a shard that is not there
            self._note(note, entries)

        self._pending.append(self._pool.submit(act))

    def _settle_one(self) -> None:
        with self._explained():
            self._pending.popleft().result()

    def finish(self, built: Path | None, manifest: Callable[[], JsonObject | None]) -> None:
        while self._pending:
            self._settle_one()
        facts = manifest() or {}
        with self._explained():
            self._put(FACTS, json.dumps(facts).encode())
        try:
            self._delete(self._stale | self._uploaded - _with_indices(str(entry["name"]) for entry in facts["shards"]))
            self._delete([UNFINISHED])
        except SourceError as exc:
            warn_user(
                f"{self.name} is complete, but replaced shards or {UNFINISHED} cannot be deleted: {words(exc)}. Run "
                "the same command again to delete them.",
                FeedlineWarning,
            )

    def close(self) -> None:
        """Give up uploads that have not begun, and delete the local files."""
        self._pool.shutdown(cancel_futures=True)
        self._storage.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Turn errors of the store into a PackError with advice."""
        try:
            yield
        except SourceError as exc:
            unchanged = ", and the output that was there can still be read" if self._stale else ""
            raise PackError(
                f"{words(exc)}. {counted(self._saved, 'complete shard is', 'complete shards are')} in "
                f"{self.name}{unchanged}. Correct the cause and run the same command again: it resumes after them."
                if self._saved
                else f"{words(exc)}. Nothing was packed yet{unchanged}."
            ) from exc

    def _at(self, name: str) -> str:
        return f"{self._address}/{name}"

    def _ask(self, name: str, act: Callable[[AbstractFileSystem, str], T], done: str = "written") -> T:
        address = self._at(name)

        def asked(system: AbstractFileSystem) -> T:
            if hasattr(system, "retries"):
                system.retries = _TRIES
            system.invalidate_cache()
            return act(system, system._strip_protocol(address))

        return self._storage.ask(address, asked, done=done)

    def _listed(self) -> dict[str, int]:
        """Return the names of all objects below the address, and their sizes."""

        def find(system: AbstractFileSystem, path: str) -> dict[str, int]:
            root = path.rstrip("/") + "/"
            found = system.find(root, detail=True)
            system.invalidate_cache()
            names = {f"/{name.lstrip('/')}".removeprefix(f"/{root.lstrip('/')}"): one for name, one in found.items()}
            return {name: one["size"] for name, one in names.items() if name and one["type"] == "file"}

        return self._ask("", find, "listed")

    def _put(self, name: str, data: bytes) -> None:
        with tempfile.NamedTemporaryFile(dir=self.folder) as file:
            file.write(data)
            file.flush()
            # `put_file` and not `pipe_file`: it makes folders in systems that have some, but no buckets.
            self._ask(name, lambda system, target: system.put_file(file.name, target))

    def _take(self, shard: Path, entry: Entry) -> None:
        """Upload a shard, compare it with what the store says it has, and note the version that the store gave it."""
        name, size = str(entry["name"]), shard.stat().st_size
        part = max(_PART, -(-size // _MOST_PARTS))
        options = {"chunksize": part} if protocol_of(self._address) in ("s3", "s3a") else {}

        def put(system: AbstractFileSystem, target: str) -> dict[str, object]:
            if "max_concurrency" in signature(getattr(system, "_put_file", system.put_file)).parameters:
                options["max_concurrency"] = _PARTS // _UPLOADS
            system.put_file(str(shard), target, **options)
            system.invalidate_cache()
            found: dict[str, object] = system.info(target)
            return found

        found = self._ask(name, put)
        differs = f"{shown_url(self._at(name))} is not what was uploaded: "
        if found["size"] != size:
            raise PackError(f"{differs}it has {found['size']} bytes instead of {size}. Run the same command again.")
        is_confirmed = not self._verify or _is_confirmed(found, shard, part)
        if not is_confirmed and self._crc32_of(name, size) != entry["crc32"]:
            raise PackError(f"{differs}its checksum differs. Run the same command again.")
        if tag := version_of(found, protocol_of(self._address)).tag:
            entry["tag"] = tag
        shard.unlink()

    def _crc32_of(self, name: str, size: int) -> int:
        """Return the checksum of an object for which the store reports none that can be compared."""
        found = 0
        with closing(self._storage.open(self._at(name))) as blob:
            for start in range(0, size, _PART):
                found = zlib.crc32(blob.read(start, min(start + _PART, size)), found)
        return found

    def _delete(self, names: Iterable[str]) -> None:
        addresses = list(map(self._at, names))
        if addresses:
            self._ask("", lambda system, _: system.rm(list(map(system._strip_protocol, addresses))), "deleted")


def _with_indices(shards: Iterable[str]) -> set[str]:
    return {name for shard in shards for name in (shard, f"{INDEX_FOLDER}/{shard}")}


def _version_of(name: str) -> int:
    """Return how many outputs had been replaced when a shard was written, from its name."""
    found = _SHARD.fullmatch(name)
    return int(found["version"] or 0) if found else 0


def _is_confirmed(found: Mapping[str, object], path: Path, part: int) -> bool:
    """True if a checksum that the store computed is that of the file: S3's tag, or the MD5 of Google Cloud Storage.

    S3's tag is another one if the bucket encrypts with keys of its own.
    """
    tag, whole = str(found.get("ETag", "")).strip('"'), md5(usedforsecurity=False)
    if not tag and not found.get("md5Hash"):
        return False
    parts = []
    with open(path, "rb") as file:
        while piece := file.read(part):
            whole.update(piece)
            parts.append(md5(piece, usedforsecurity=False).digest())
    of_parts = f"{md5(b''.join(parts), usedforsecurity=False).hexdigest()}-{len(parts)}"
    return tag in (whole.hexdigest(), of_parts) or found.get("md5Hash") == base64.b64encode(whole.digest()).decode()
