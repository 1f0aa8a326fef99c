"""An output under construction in an object store.

A shard is written to a local temporary file, uploaded, compared with what the store says it has, and deleted. Threads
upload up to four shards while the next one is being written, as long as they have no more than 1 GiB together: so there
are at most two large shards on the local disk, or five small ones. Another thread writes a note for each shard, in
order, when it and all shards before it are uploaded. The manifest comes last: without one, the output is not complete.

A run that replaces an older output gives its shards other names, so that the older output can be read until the new
manifest takes its place. Only then are the older shards deleted.

The store holds, below the address of the output:

    shard-000000.tar, ...     the shards; shard-v1-000000.tar, ... if they replaced others
    .index/shard-000000.tar   the index of each tar shard
    .packing/                 the job, the note and the list of shards, until the output is complete
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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from hashlib import md5
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from feedline.datasets.framework.checksums import SEAL
from feedline.datasets.framework.manifest import FACTS, INDEX_FOLDER, JOB, UNFINISHED, WORK_FOLDER, manifest_in
from feedline.datasets.storage.addresses import identity_of, shown_url
from feedline.datasets.storage.remote import Remote
from feedline.datasets.storage.storage import Storage, protocol_of, version_of
from feedline.errors import BadOption, CorruptSource, FeedlineWarning, PackError, SourceError, warn_user
from feedline.system.failures import words
from feedline.system.shown import counted
from feedline.tools.write.work import NOTE, Indexing, Work, crc32_of

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

T = TypeVar("T")

_SHARD = re.compile(rf"(?:\{INDEX_FOLDER}/)?shard-(?:v(?P<version>\d+)-)?\d{{6,}}\.\w+", re.ASCII)
"""Names of shards and of their indices."""
_WORK = re.compile(rf"\{WORK_FOLDER}/(?:{re.escape(JOB)}|{re.escape(NOTE)}|shards-\d{{6,}}\.json)", re.ASCII)
_UNFINISHED = re.compile(rf"{_WORK.pattern}|{_SHARD.pattern}", re.ASCII)
_NOTHING = re.compile(r"(?!)")
"""Names beside the objects that a manifest names: after the manifest was written, during a run, and without either."""
_S3 = ("s3", "s3a")
_UPLOADS = 4
_WAITING_BYTES = 1 << 30
"""The most shards that are uploaded at the same time, and their bytes, unless a single one has more. Guesses."""
_PART = 1 << 24
_PARTS = 10
"""Bytes per part of an upload to S3, and the most parts in memory at a time. Guesses."""
_MOST_PARTS = 10_000
"""Parts that S3 allows."""
_PIECE = 1 << 24
_TRIES = 5
"""How often s3fs tries a single request: one that fails must not repeat the other parts of an upload."""


class StoreWork(Work):
    """The folder of a store in which an output is built.

    Raises BadOption: something is there already, or a different job left data there; PackError: the store refuses.

    Args:
        address: the address of the output.
        job: description of the job, in JSON-compatible values. Only the same job can be resumed.
        remote: how the store is reached.
        restart: True to start over, discarding what an earlier run left.
        overwrite: True to replace an older output, which can be read until the new one is complete.
        verify: True to compare the content of uploads, not only the size.
    """

    is_remote = True

    def __init__(
        self,
        address: str,
        job: dict[str, object],
        remote: Remote,
        *,
        restart: bool,
        overwrite: bool,
        verify: bool,
    ) -> None:
        self._address = address.rstrip("/")
        self.name = shown_url(self._address)
        self._verify = verify
        self._has_note = False
        self._saved = 0
        """Complete shards in the most recent note."""
        self._version = 0
        """How many outputs were replaced here before; part of the names of shards."""
        self._stale: list[str] = []
        """Shards and indices of the output that is being replaced."""
        self._upload_begun: tuple[Future[None], int] | None = None
        """The upload of the last shard, of which there is no note yet, and its bytes."""
        self._pending: deque[tuple[Future[None], int]] = deque()
        """The notes that are written after the uploads of their shards, in order, and the bytes of the shards."""
        self._storage = Storage(remote)
        self._uploads = ThreadPoolExecutor(_UPLOADS, "feedline-upload")
        self._notes = ThreadPoolExecutor(1, "feedline-note")
        self.path = Path(tempfile.mkdtemp(prefix="feedline-pack-"))
        try:
            with self._explained():
                self._begin(json.loads(json.dumps(job)), restart=restart, overwrite=overwrite)
        except BaseException:
            self.close()
            raise

    def _begin(self, job: dict[str, object], *, restart: bool, overwrite: bool) -> None:
        found = self._listed()
        packed = self._packed() if FACTS in found else None
        is_complete = packed is not None
        packed = packed or []
        output = {FACTS, *packed, *(f"{INDEX_FOLDER}/{name}" for name in packed)} if is_complete else set[str]()
        # Shards that no manifest names are feedline's only beside the job, which is written before them.
        is_left = UNFINISHED in found
        unfinished = _UNFINISHED if is_left else _WORK if is_complete else _NOTHING
        others = [name for name in found if name not in output and not unfinished.fullmatch(name)]
        if others:
            raise BadOption(
                f"{self.name} holds objects that feedline did not write, or that are damaged, such as {others[0]!r}, "
                "and nothing is packed among them. Give another address, or remove them."
            )
        self._has_note = f"{WORK_FOLDER}/{NOTE}" in found
        note = None if restart else self.note
        names = [] if note is None else [str(one["name"]) for one in note["entries"]]
        is_delivered = names == packed  # its run was killed after the manifest, before it had deleted the rest
        if is_delivered and note is not None and self._changed(job):
            note = None
        if is_complete and not overwrite and (note is None or not is_delivered):
            resumed = " and resume the interrupted run that was replacing it" if self._has_note else ""
            raise BadOption(
                f"{self.name} exists already. Use --overwrite (overwrite=True) to replace it{resumed}, or give another "
                "address."
            )
        if note is not None:
            self._check_job(job)
        if note is not None and all(found.get(one["name"]) == one["bytes"] for one in note["entries"]):
            self._saved, self._version = len(names), _version_of(names[0])
        else:
            self._has_note = False
            self._delete(name for name in (f"{WORK_FOLDER}/{NOTE}",) if name in found)  # the rest means nothing then
            self._delete(found.keys() - output - {f"{WORK_FOLDER}/{NOTE}", UNFINISHED})
            found = {name: size for name, size in found.items() if name in output}
            self._version = max((_version_of(name) + 1 for name in packed), default=0)
            self._save(JOB, json.dumps(job).encode())
        self._stale = [name for name in found if _SHARD.fullmatch(name) and _version_of(name) != self._version]
        self.prefix = f"shard-v{self._version}-" if self._version else "shard-"

    def _packed(self) -> list[str] | None:
        """Return the names of the shards of the output that is there; None if its manifest is damaged."""
        try:
            manifest = manifest_in(self._address, self._storage)
        except CorruptSource:
            return None
        if manifest is None or SEAL not in manifest.stored:
            return None
        return [shard.name for shard in manifest.shards]

    def has_note(self) -> bool:
        return self._has_note

    def write_note(self, note: dict[str, object], entries: Sequence[object] | None = None) -> None:
        """Record the run's position after the upload of the last shard, without waiting for it."""
        begun, self._upload_begun = self._upload_begun, None
        before = self._pending[-1][0] if self._pending else None
        complete, write = list(entries or ()), super().write_note  # further shards are added to `entries` meanwhile

        def act() -> None:
            for one in (before, begun[0] if begun else None):
                if one is not None:
                    one.result()  # raises what it raised: there is no note of a shard that is not there
            write(note, complete)
            self._has_note, self._saved = True, len(complete)

        self._pending.append((self._notes.submit(act), begun[1] if begun else 0))

    def keep(self, shard: Path, entry: dict[str, object], index_of: Indexing) -> None:
        size = shard.stat().st_size
        while self._pending and (
            len(self._pending) >= _UPLOADS or sum(some for _, some in self._pending) + size > _WAITING_BYTES
        ):
            self._settle_one()
        uploading = shard.with_name(f"uploading-{entry['name']}")
        os.replace(shard, uploading)
        self._upload_begun = self._uploads.submit(self._upload_shard, uploading, entry, index_of), size

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
        """Wait for the oldest upload and its note."""
        with self._explained():
            self._pending.popleft()[0].result()

    def settle(self) -> None:
        while self._pending:
            self._settle_one()

    def deliver(self, built: Path) -> None:
        self.settle()
        with self._explained():
            self._put(FACTS, (built / FACTS).read_bytes())
        try:
            self._delete(self._stale)
            pages = [f"shards-{number:06d}.json" for number in range(self._page_count)]
            self._delete(f"{WORK_FOLDER}/{name}" for name in (NOTE, *pages, JOB))
        except SourceError as exc:
            warn_user(
                f"{self.name} is complete, but replaced shards or {WORK_FOLDER}/ cannot be deleted: {words(exc)}. Run "
                "the same command again to delete them.",
                FeedlineWarning,
            )
        self._has_note = False

    def close(self) -> None:
        self._uploads.shutdown(cancel_futures=True)
        self._notes.shutdown(cancel_futures=True)
        self._storage.close()
        shutil.rmtree(self.path, ignore_errors=True)

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

    def _load(self, name: str) -> bytes | None:
        return self._storage.contents(self._at(f"{WORK_FOLDER}/{name}"))

    def _save(self, name: str, data: bytes) -> None:
        self._put(f"{WORK_FOLDER}/{name}", data)

    def _put(self, name: str, data: bytes) -> None:
        with tempfile.NamedTemporaryFile(dir=self.path) as file:
            file.write(data)
            file.flush()
            # `put_file` and not `pipe_file`: it makes folders in systems that have some, but no buckets.
            self._ask(name, lambda system, target: system.put_file(file.name, target))

    def _upload(self, path: Path, name: str, crc32: int) -> str:
        """Upload a file, compare it with what the store says it has, and return the version that the store gave it."""
        size = path.stat().st_size
        part = max(_PART, -(-size // _MOST_PARTS))
        options = {"chunksize": part} if protocol_of(self._address) in _S3 else {}

        def put(system: AbstractFileSystem, target: str) -> dict[str, object]:
            if "max_concurrency" in signature(getattr(system, "_put_file", system.put_file)).parameters:
                shards = min(_UPLOADS, max(1, _WAITING_BYTES // max(1, size)))
                options["max_concurrency"] = max(1, _PARTS // shards)
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


def place_of(address: str) -> str:
    """Return the address of an output for its manifest, without secrets."""
    return identity_of(address.rstrip("/"))
