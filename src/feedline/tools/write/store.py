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
import functools
import json
import os
import re
import shutil
import tempfile
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
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
from feedline.tools.write.place import Indexing, Place, crc32_of
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
_PIECE = 1 << 24
_TRIES = 5
"""How often s3fs tries a single request: one that fails must not repeat the other parts of an upload."""


class StorePlace(Place):
    """A folder in a store.

    Raises BadOption: something is there already, or a different job left data there; PackError: the store refuses.

    Args:
        address: the address of the output.
        job: description of the job, in JSON-compatible values. Only the same job can be resumed.
        remote: how the store is reached.
        restart: True to start over, discarding what an earlier run left.
        overwrite: True to replace an older output, which can be read until the new one is complete.
        verify: True to compare the content of uploads, not only the size.
    """

    def __init__(
        self, address: str, job: JsonObject, remote: Remote, *, restart: bool, overwrite: bool, verify: bool
    ) -> None:
        self._address = address.rstrip("/")
        self.name = shown_url(self._address)
        self._job = json.loads(json.dumps(job))
        self._verify = verify
        self._saved = 0
        """Complete shards in the job file."""
        self._stale: list[str] = []
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
        output = set[str]() if packed is None else {FACTS, *packed, *(f"{INDEX_FOLDER}/{name}" for name in packed)}
        # Shards that no manifest names are feedline's only beside the job file, which is written before them.
        is_left = UNFINISHED in found
        others = [name for name in found if name not in output and not (is_left and _is_unfinished(name))]
        if others:
            raise BadOption(
                f"{self.name} holds objects that feedline did not write, or that are damaged, such as {others[0]!r}, "
                "and nothing is packed among them. Give another address, or remove them."
            )
        left = self._left() if is_left and not restart else None
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
            self._check_job(left, self._job)
        if left is not None and all(found.get(one["name"]) == one["bytes"] for one in left["shards"]):
            self.left, self._saved, version = left, len(names), _version_of(names[0])
        else:
            self._note({}, [])  # the shards of the interrupted run mean nothing from here on
            self._delete(found.keys() - output - {UNFINISHED})
            found = {name: size for name, size in found.items() if name in output}
            version = max((_version_of(name) + 1 for name in packed or ()), default=0)
        shards = [name for name in found if _SHARD.fullmatch(name)]
        self._stale = [name for name in shards if _version_of(name) != version]
        self._uploaded = {*shards} - {*self._stale}
        self.version = f"v{version}-" if version else ""

    def _packed(self) -> list[str] | None:
        """Return the names of the shards of the output that is there; None if its manifest is damaged."""
        try:
            manifest = manifest_in(self._address, self._storage)
        except CorruptSource:
            return None
        if manifest is None or SEAL not in manifest.stored:
            return None
        return [shard.name for shard in manifest.shards]

    def _left(self) -> JsonObject | None:
        """Return the job file; None if there is no shard to resume after, or it is damaged."""
        try:
            left: JsonObject = json.loads(self._storage.contents(self._at(UNFINISHED)) or b"{}")
        except ValueError:
            return None
        return left if left.get("shards") else None

    # object: JSON-compatible values.
    def _note(self, note: JsonObject, entries: list[dict[str, object]]) -> None:
        self._put(UNFINISHED, json.dumps({**note, "job": self._job, "shards": entries}).encode())
        self._saved = len(entries)

    def keep(self, shard: Path, entries: list[dict[str, object]], index_of: Indexing, note: JsonObject) -> None:
        while len(self._pending) >= _UPLOADS:
            self._settle_one()
        entries = list(entries)  # further shards are added meanwhile
        uploading = shard.with_name(f"uploading-{entries[-1]['name']}")
        os.replace(shard, uploading)
        before = self._pending[-1] if self._pending else None

        def act() -> None:
            self._upload_shard(uploading, entries[-1], index_of)
            if before is not None:
                before.result()  # raises what it raised: no job file names a shard that is not there
            self._note(note, entries)

        self._pending.append(self._pool.submit(act))

    # object: JSON-compatible values.
    def _upload_shard(self, path: Path, entry: dict[str, object], index_of: Indexing) -> None:
        entry["crc32"] = crc32 = crc32_of(path)
        tag = self._upload(path, str(entry["name"]), crc32)
        if tag:
            entry["tag"] = tag
        index = index_of(path, crc32)
        if index:
            self._put(f"{INDEX_FOLDER}/{entry['name']}", index)
        path.unlink()

    def _settle_one(self) -> None:
        with self._explained():
            self._pending.popleft().result()

    def finish(self, built: Path | None, manifest: Callable[[], JsonObject | None]) -> None:
        while self._pending:
            self._settle_one()
        facts = manifest() or {}
        with self._explained():
            self._put(FACTS, json.dumps(facts).encode())
        names = {str(entry["name"]) for entry in facts["shards"]}
        try:
            self._delete([*self._stale, *self._uploaded - names - {f"{INDEX_FOLDER}/{name}" for name in names}])
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

    def _upload(self, path: Path, name: str, crc32: int) -> str:
        """Upload a file, compare it with what the store says it has, and return the version that the store gave it."""
        size = path.stat().st_size
        part = max(_PART, -(-size // _MOST_PARTS))
        options = {"chunksize": part} if protocol_of(self._address) in ("s3", "s3a") else {}

        def put(system: AbstractFileSystem, target: str) -> dict[str, object]:
            if "max_concurrency" in signature(getattr(system, "_put_file", system.put_file)).parameters:
                options["max_concurrency"] = _PARTS // _UPLOADS
            system.put_file(str(path), target, **options)
            system.invalidate_cache()
            found: dict[str, object] = system.info(target)
            return found

        found = self._ask(name, put)
        differs = f"{shown_url(self._at(name))} is not what was uploaded: "
        if found["size"] != size:
            raise PackError(f"{differs}it has {found['size']} bytes instead of {size}. Run the same command again.")
        if self._verify and not _is_confirmed(found, path, part) and self._read_back(name, size) != crc32:
            raise PackError(f"{differs}its checksum differs. Run the same command again.")
        return version_of(found, protocol_of(self._address)).tag

    def _read_back(self, name: str, size: int) -> int:
        """Return the checksum of an object for which the store reports none that can be compared."""
        found = 0
        for start in range(0, size, _PIECE):
            stop = min(start + _PIECE, size)
            piece = self._ask(name, functools.partial(_cat, start=start, stop=stop), "read")
            found = zlib.crc32(piece, found)
        return found

    def _delete(self, names: Iterable[str]) -> None:
        addresses = [self._at(name) for name in names]
        if addresses:
            self._ask("", lambda system, _: system.rm(list(map(system._strip_protocol, addresses))), "deleted")


def _is_unfinished(name: str) -> bool:
    return name == UNFINISHED or _SHARD.fullmatch(name) is not None


def _version_of(name: str) -> int:
    """Return how many outputs had been replaced when a shard was written, from its name."""
    found = _SHARD.fullmatch(name)
    return int(found["version"] or 0) if found else 0


def _cat(system: AbstractFileSystem, path: str, *, start: int, stop: int) -> bytes:
    data: bytes = system.cat_file(path, start=start, end=stop)
    return data


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
