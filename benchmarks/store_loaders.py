"""Loaders over objects in a store that speaks S3, by library, for `w20_object_storage`.

To add another way to read with feedline, write a function that opens it, and add a row to `WAYS`.
"""

from __future__ import annotations

import asyncio
import http.client
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.store_data import BUCKET, Data
from feedline.datasets import Remote, TarDataset
from feedline.tools.measure import harness
from feedline.tools.measure.harness import Loading

_KEYS = {"AWS_ACCESS_KEY_ID": "user", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_DEFAULT_REGION": "us-east-1"}
FIELDS = {"jpeg": ("jpg", "cls"), "tokens": "npy"}
SEED = 1


@dataclass(frozen=True)
class Job:
    """What is loaded, from where, and how."""

    data: Data
    objects: list[str]
    """Names of the shards."""
    port: int
    workers: int
    batch_size: int
    mixed_shards: int
    """Samples of about so many shards are shuffled together, over all workers."""
    cache: Path
    """A new folder."""
    cache_bytes: int

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def folder(self, form: str) -> str:
        """Return the address of the samples in a format, without the scheme."""
        return f"{BUCKET}/{self.data.name}/{form}"

    @property
    def mixed(self) -> int:
        """Samples that are shuffled together."""
        return self.mixed_shards * self.data.per_shard

    @property
    def buffer(self) -> int:
        """The part of each worker of `mixed`."""
        return max(1, self.mixed // max(1, self.workers))


# Any: loaders of several libraries.
@dataclass(frozen=True)
class Way:
    """One of the ways that are compared."""

    side: harness.Side
    package: str
    """The package it needs."""
    form: str
    """The format it reads."""
    opened: Callable[[Job], Any]


def prepare(job: Job) -> None:
    """Tell the clients of S3 in this process where the store is. Their libraries look at the environment."""
    os.environ.update(_KEYS)
    os.environ.update(AWS_ENDPOINT_URL=job.endpoint, S3_ENDPOINT_URL=job.endpoint, AWS_EC2_METADATA_DISABLED="true")


# Any: samples of several libraries.
def pairs(samples: Iterable[Any]) -> tuple[list[bytes], list[int]]:
    """Make a batch of JPEG files and their numbers. Files differ in size, so they stay a list."""
    images, numbers = [], []
    for sample in samples:
        image, number = (sample["jpg"], sample["cls"]) if isinstance(sample, dict) else sample
        images.append(bytes(image))  # litdata's are views, which cannot be pickled
        numbers.append(int(number))
    return images, numbers


def loading(job: Job) -> dict[str, Any]:
    """Return the arguments that all loaders have in common."""
    collate = {"collate_fn": pairs} if job.data.kind == "jpeg" else {}
    return {**Loading(job.workers, job.batch_size).options, **collate}


# Any: a dataset.
def ours(job: Job, dataset: Any, **options: object) -> harness.LoaderLike:
    """Return feedline's loader."""
    return harness.Side(harness.FEEDLINE, "auto").open(dataset, **loading(job), **options)


def shards(job: Job, *places: str, **options: object) -> TarDataset:
    """Return tar shards as feedline reads them from the store."""
    keys = {"key": _KEYS["AWS_ACCESS_KEY_ID"], "secret": _KEYS["AWS_SECRET_ACCESS_KEY"], "endpoint_url": job.endpoint}
    remote = Remote(storage_options=keys, cache=job.cache / "shards", cache_bytes=job.cache_bytes)
    return TarDataset([f"s3://{place}" for place in places], FIELDS[job.data.kind], remote=remote, **options)  # type: ignore[arg-type]


# Any: a stream.
def shuffled_stream(job: Job) -> Any:
    """Return the shards as a stream in random order."""
    places = [f"{job.folder('tar')}/{name}" for name in job.objects]
    return shards(job, *places, cache=job.cache / "index").stream(shuffle=True, buffer=job.buffer, seed=SEED)


def feedline_stream(job: Job) -> harness.LoaderLike:
    return ours(job, shuffled_stream(job))


def feedline_random(job: Job) -> harness.LoaderLike:
    """Return feedline's loader over the samples of all shards in random order, found with the index of each shard."""
    return ours(job, shards(job, f"{job.folder('packed')}/"), shuffle=True, seed=SEED)


def mosaicml(job: Job) -> Any:
    """Return MosaicML's loader with `py1e` shuffling, which its documentation advises, and its usual `predownload`."""
    from streaming import StreamingDataLoader, StreamingDataset

    dataset = StreamingDataset(
        remote=f"s3://{job.folder('mds')}",
        local=str(job.cache),
        cache_limit=job.cache_bytes,
        shuffle=True,
        shuffle_algo="py1e",
        shuffle_seed=SEED,
        shuffle_block_size=job.mixed,
        predownload=8 * job.batch_size,
        batch_size=job.batch_size,
    )
    for stream in dataset.streams:
        # Its client has an open connection, which forked workers would share: over plain HTTP they get each other's
        # answers. It makes a new client when it needs one.
        stream._downloader.clean_up()
    collate = {} if job.data.kind == "jpeg" else {"collate_fn": arrays}
    return StreamingDataLoader(dataset, **{**loading(job), **collate})


# Any: samples of MosaicML's.
def arrays(samples: list[Any]) -> Any:
    """Make the batch that the other loaders make: an array instead of a dict of one."""
    from torch.utils.data import default_collate

    return default_collate([sample["npy"] for sample in samples])


def litdata(job: Job) -> Any:
    """Return litdata's loader, which shuffles the order of chunks, and the samples of each chunk."""
    import litdata
    from litdata.streaming import downloader
    from litdata.streaming.item_loader import TokensLoader

    # It has no option that lets obstore, which fetches its chunks, use plain HTTP.
    downloader._OBSTORE_CLIENT_OPTIONS["allow_http"] = True
    dataset = litdata.StreamingDataset(
        f"s3://{job.folder('litdata')}",
        cache_dir=str(job.cache),
        item_loader=None if job.data.kind == "jpeg" else TokensLoader(block_size=job.data.window),
        shuffle=True,
        drop_last=False,
        seed=SEED,
        max_cache_size=job.cache_bytes,
        storage_options={"endpoint_url": job.endpoint},
    )
    return litdata.StreamingDataLoader(dataset, **loading(job))


def webdataset(job: Job) -> Any:
    """Return torch's loader over the webdataset package, which fetches shards with curl and caches whole ones."""
    import webdataset
    from torch.utils.data import DataLoader

    dataset = webdataset.WebDataset(
        [f"{job.endpoint}/{job.folder('tar')}/{name}" for name in job.objects],
        shardshuffle=len(job.objects),
        detshuffle=True,
        seed=SEED,
        cache_dir=str(job.cache),
        cache_size=job.cache_bytes,
        empty_check=False,
    )
    for stage in dataset.pipeline:
        cleaner = getattr(stage, "cleaner", None)
        if cleaner is not None:
            cleaner.interval = 0  # it looks at the size of the cache every 30 s, and all of this takes less
    fields = FIELDS[job.data.kind]
    samples = dataset.shuffle(job.buffer).decode().to_tuple(*([fields] if isinstance(fields, str) else fields))
    if isinstance(fields, str):
        samples = samples.map(first)
    return DataLoader(samples, **loading(job))


# Any: the bytes of an image and a number, or an array.
class Objects:
    """An object per sample, fetched with the standard library over one connection per process."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.connection: http.client.HTTPConnection | None = None

    def __len__(self) -> int:
        return self.job.data.samples

    def __getitem__(self, index: int) -> Any:
        if self.connection is None:
            self.connection = http.client.HTTPConnection("127.0.0.1", self.job.port)
        self.connection.request("GET", f"/{self.job.folder('objects')}/{index}")
        return self.sample(index, self.connection.getresponse().read())

    def sample(self, index: int, content: bytes) -> Any:
        """Make the sample of an object."""
        return (content, index) if self.job.data.kind == "jpeg" else np.frombuffer(bytearray(content), np.uint16)


class AsyncObjects(Objects):
    """The same with coroutines, over as many connections as there are samples in a batch."""

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self.idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def __getitem__(self, index: int) -> Any:
        reader, writer = self.idle.pop() if self.idle else await asyncio.open_connection("127.0.0.1", self.job.port)
        writer.write(f"GET /{self.job.folder('objects')}/{index} HTTP/1.1\r\nHost: store\r\n\r\n".encode())
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(line for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:"))
        content = await reader.readexactly(int(length.split(b":")[1]))
        self.idle.append((reader, writer))
        return self.sample(index, content)

    async def aclose(self) -> None:
        for _, writer in self.idle:
            writer.close()
            await writer.wait_closed()


def one_by_one(job: Job) -> Any:
    return harness.Side(harness.TORCH).open(Objects(job), shuffle=True, **loading(job))


def at_once(job: Job) -> Any:
    return ours(job, AsyncObjects(job), shuffle=True)


# Any: a sample.
def first(sample: Any) -> Any:
    """Return the only field of a sample."""
    return sample[0]


WAYS = {
    "mosaicml": Way(harness.Side("mosaicml"), "streaming", "mds", mosaicml),
    "litdata": Way(harness.Side("litdata"), "litdata", "litdata", litdata),
    "webdataset": Way(harness.Side("webdataset"), "webdataset", "tar", webdataset),
    "feedline": Way(harness.Side(harness.FEEDLINE, "stream"), "s3fs", "tar", feedline_stream),
    "random": Way(harness.Side(harness.FEEDLINE, "random access"), "s3fs", "packed", feedline_random),
    "objects": Way(harness.Side(harness.TORCH, "objects"), "torch", "objects", one_by_one),
    "async": Way(harness.Side(harness.FEEDLINE, "async"), "torch", "objects", at_once),
}
