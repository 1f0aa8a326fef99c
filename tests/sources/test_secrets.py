"""No user, password, token or signature is revealed, in any error of any source or in anything that is written.

Each test draws new secrets, so that no source line in a traceback contains one.
"""

from __future__ import annotations

import json
import pickle
import secrets
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

import feedline
from feedline.datasets import (
    ArrayDataset,
    ArrowDataset,
    CSVDataset,
    FileDataset,
    HDF5Dataset,
    ImageFolder,
    LMDBDataset,
    ParquetDataset,
    RedisStream,
    Remote,
    SQLDataset,
    StreamDataset,
    TarDataset,
)
from feedline.errors import BadOption, BadState, FeedlineError, NotPicklable, SourceError
from feedline.tools.write.inspection import inspect
from tests.datasets.formats.tar.writing import tar_bytes
from tests.datasets.storage.servers import Request, WebServer, start_fsspec, web_server

SAMPLES = [(f"{number:02}.cls", str(number).encode()) for number in range(20)]


class Written:
    """Secrets, and everything that was written."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.user, self.password, self.signature = (f"u{secrets.token_hex(8)}" for _ in range(3))
        self._texts: list[str] = []

    def url(self, place: str, *, scheme: str = "http") -> str:
        """Return an address with all secrets."""
        query = f"X-Amz-Signature={self.signature}&token={self.signature}"
        return f"{scheme}://{self.user}:{self.password}@{place}?{query}"

    # Any: anything that can be shown.
    def note(self, *values: Any) -> None:
        for value in values:
            self._texts += [repr(value), str(value)]
            if isinstance(value, BaseException):
                self._note_exception(value)

    def _note_exception(self, exc: BaseException) -> None:
        self._texts += traceback.format_exception(exc)
        here: BaseException | None = exc
        while here is not None:
            self._texts += [repr(here), repr(here.args), repr(vars(here)), *getattr(here, "__notes__", [])]
            here = here.__cause__

    def search(self, *more: str) -> None:
        assert self._texts
        texts = [*self._texts, *more]
        texts += [path.read_bytes().decode("latin-1") for path in self.folder.rglob("*") if path.is_file()]
        for text in texts:
            for secret in (self.user, self.password, self.signature):
                assert secret not in text, text


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Iterator[Written]:
    folder = tmp_path / "written"
    folder.mkdir()
    monkeypatch.setenv("FEEDLINE_CACHE", str(folder / "cache"))
    written = Written(folder)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield written
        written.note(*(warning.message for warning in caught))
    written.search(*capfd.readouterr())


@pytest.fixture(scope="module", autouse=True)
def _fsspec() -> None:
    pytest.importorskip("fsspec")
    start_fsspec()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[WebServer]:
    folder = tmp_path / "served"
    folder.mkdir()
    shard = tar_bytes(SAMPLES)
    files = {
        "a.tar": shard,
        "cut.tar": shard[:3000],
        "zero.tar": shard[:1024] + bytes(512) + shard[1536:],
        "twice.tar": tar_bytes([("a.cls", b"1"), ("b.cls", b"2"), ("a.cls", b"3")]),
        "field.tar": tar_bytes([("a.cls", b"1"), ("a.cls", b"2")]),
        "odd.tar": tar_bytes([("a.cls", b"x"), ("b.npy", b"x"), ("c.pyd", b"x"), ("d.cls", b"3")]),
        "text.tar": b"no archive at all " * 100,
        "packed.tar": b"\x1f\x8b\x08" + b"x" * 2000,
    }
    for name, content in files.items():
        (folder / name).write_bytes(content)
    with web_server(folder) as server:
        yield server


def late(fault: str) -> Callable[[Request], str | None]:
    return lambda request: fault if request.number > 1 else None


def consume(written: Written, dataset: Any, **options: Any) -> None:
    """Read all samples in a loader, and note everything that it prints, raises and saves."""
    written.note(dataset)
    for on_error in ("raise", "skip"):
        with closing(feedline.Loader(dataset, 2, on_error=on_error, **options)) as loader:
            try:
                written.note(*loader)
            except (FeedlineError, ValueError) as exc:
                written.note(exc)
            written.note(loader, loader.faults, *loader.faults, loader.state_dict())
            (written.folder / f"{on_error}.json").write_text(json.dumps(loader.state_dict()))


def shards(written: Written, place: str, mode: Any, *, scheme: str = "http", **options: Any) -> Any:
    given = Remote(retries=0, storage_options=options.pop("storage_options", None))
    dataset = TarDataset(written.url(place, scheme=scheme), remote=given, **options)
    written.note(dataset, dataset.remote, dataset.form)
    return dataset.stream() if mode == "stream" else dataset


def first_of(address: str, mode: str) -> Any:
    dataset = TarDataset(address, remote=Remote(retries=0))
    return next(iter(dataset.stream() if mode == "stream" else dataset))


FILES = ["a.tar", "none.tar", "cut.tar", "zero.tar", "twice.tar", "field.tar", "odd.tar", "text.tar", "packed.tar"]
FAULTS = ["404", "403", "500", "refuse", "drop", "whole", "lie", "/none.tar", "ftp://elsewhere/a", "http://[", "/a.tar"]


@pytest.mark.parametrize("mode", ["stream", "random"])
class TestShards:
    @pytest.mark.parametrize("name", FILES)
    def test_files(self, written: Written, server: WebServer, mode: str, name: str) -> None:
        with_host = f"{server.address.removeprefix('http://')}/{name}"
        try:
            consume(written, shards(written, with_host, mode))
        except FeedlineError as exc:  # the index of a shard is built when its length is requested
            written.note(exc)

    @pytest.mark.parametrize("fault", FAULTS)
    def test_servers(self, written: Written, server: WebServer, mode: str, fault: str) -> None:
        for is_late in (False, True):
            dataset = shards(written, f"{server.address.removeprefix('http://')}/a.tar", mode, fields="cls")
            server.requests.clear()
            server.fault = late(fault) if is_late else lambda request: fault
            try:
                consume(written, dataset)
            except FeedlineError as exc:
                written.note(exc)
            dataset.close()

    def test_fields_and_options(self, written: Written, server: WebServer, mode: str) -> None:
        place = f"{server.address.removeprefix('http://')}/a.tar"
        for options in ({"fields": "none"}, {"decode": "rgb9"}, {"storage_options": written.password}):
            with pytest.raises(FeedlineError) as caught:
                next(iter(shards(written, place, mode, **options)))
            written.note(caught.value)

    @pytest.mark.parametrize("place", ["127.0.0.1:9/a.tar", "host:port/a.tar", "[::1/a.tar", "a..b/a.tar", "h/a\n.tar"])
    def test_hosts(self, written: Written, mode: str, place: str) -> None:
        for scheme in ("http", "https"):
            with pytest.raises(FeedlineError) as caught:
                next(iter(shards(written, place, mode, scheme=scheme)))
            written.note(caught.value)

    @pytest.mark.parametrize("password", ["{}/x", "{}@x", "{}?x", "{}#x", "{} x", "{}:x", "ä{}", "{}\n"])
    def test_passwords_that_are_not_quoted(self, written: Written, mode: str, password: str) -> None:
        address = f"http://{written.user}:{password.format(written.password)}@127.0.0.1:9/a.tar"
        with pytest.raises(FeedlineError) as caught:
            first_of(address, mode)
        written.note(caught.value)

    @pytest.mark.parametrize("protocol", ["memory", "unheard", "s3", "gs"])
    def test_stores(self, written: Written, mode: str, protocol: str) -> None:
        pytest.importorskip({"s3": "s3fs", "gs": "gcsfs"}.get(protocol, "fsspec"))
        options = {
            "memory": {},
            "unheard": {},
            "s3": {"key": written.user, "secret": written.password, "endpoint_url": "http://127.0.0.1:9"},
            "gs": {"token": written.password},
        }[protocol]
        dataset = shards(written, "bucket/a.tar", mode, scheme=protocol, storage_options=options)
        with pytest.raises(FeedlineError) as caught:
            next(iter(dataset))
        written.note(caught.value)
        dataset.close()

    def test_a_dataset_that_cannot_be_sent_to_workers(self, written: Written, server: WebServer, mode: str) -> None:
        options = {"key": written.user, "hook": lambda: written.password}
        dataset = shards(written, f"{server.address.removeprefix('http://')}/a.tar", mode, storage_options=options)
        loader = feedline.Loader(dataset, 2, workers=1, start_method="spawn")
        with pytest.raises(NotPicklable) as caught:
            list(loader)
        written.note(caught.value)


@pytest.mark.parametrize("mode", ["stream", "random"])
def test_a_state_resumes_with_another_signature(written: Written, server: WebServer, mode: str) -> None:
    place = f"{server.address.removeprefix('http://')}/a.tar"

    def loader() -> feedline.Loader:
        return feedline.Loader(shards(written, place, mode, fields="cls"), 3, seed=0)

    first = loader()
    batches = iter(first)
    begun = [next(batches).tolist() for _ in range(3)]
    state = first.state_dict()
    first.close()
    written.note(state)
    written.user, written.password, written.signature = (f"u{secrets.token_hex(8)}" for _ in range(3))
    second = loader()
    second.load_state_dict(pickle.loads(pickle.dumps(state)))
    assert sorted(chain(*begun, *(batch.tolist() for batch in second))) == list(range(20))
    second.close()
    if mode == "random":  # the cached index is found again, too
        assert len(list((written.folder / "cache").glob("*-index"))) == 1
        return
    other = feedline.Loader(shards(written, place.replace("a.tar", "b.tar"), mode, fields="cls"), 3, seed=0)
    with pytest.raises(BadState) as caught:  # noqa: PT012  (either may say so)
        other.load_state_dict(state)
        next(iter(other))
    written.note(caught.value)
    other.close()


@pytest.mark.parametrize("place", ["127.0.0.1:9/people", "host:port/people", "127.0.0.1:9/people?sslmode=odd"])
def test_databases(written: Written, place: str) -> None:
    pytest.importorskip("psycopg")
    for address in (
        f"postgresql://{written.user}:{written.password}@{place}",
        f"postgresql://{written.user}:{written.password}/x@{place}",
        f"postgresql://127.0.0.1:9/people?user={written.user}&password={written.password}",
    ):
        with pytest.raises(FeedlineError) as caught:  # noqa: PT012  (some are refused at once)
            dataset = SQLDataset(address, "SELECT 1 AS id", key="id")
            written.note(dataset.address, dataset.stream())
            len(dataset)
        written.note(caught.value)


def test_messages(written: Written) -> None:
    pytest.importorskip("redis")
    for place in ("127.0.0.1:9/0", "127.0.0.1:port/0", "127.0.0.1:9/x"):
        feed = RedisStream(written.url(place, scheme="redis"), "stream", retry_s=0)
        dataset = StreamDataset(feed, idle_s=0)
        written.note(dataset, feed)
        with pytest.raises(FeedlineError) as caught:
            next(iter(dataset))
        written.note(caught.value)
    for url in ("", written.url("h", scheme="redis").encode()):
        with pytest.raises(BadOption) as caught_option:
            RedisStream(url, "stream")  # type: ignore[arg-type]
        written.note(caught_option.value)


# Any: datasets have nothing in common but that they are made of a path.
LOCAL: dict[str, Callable[[Any], Any]] = {
    "arrow": lambda path: len(ArrowDataset([path])),
    "csv": lambda path: len(CSVDataset(path, cache=False)),
    "hdf5": lambda path: HDF5Dataset(path, "x"),
    "lmdb": LMDBDataset,
    "array": ArrayDataset,
    "arrays": lambda path: ArrayDataset({"x": path}),
    "images": ImageFolder,
    "files": FileDataset,
    "labels": lambda path: FileDataset(Path(__file__).parent, labels=path),
}


@pytest.mark.parametrize("source", LOCAL)
def test_sources_of_local_files(written: Written, source: str) -> None:
    url = written.url("host/a.npy", scheme="https")
    for address in (url, Path(url), url.replace("a.npy", "*")):
        with pytest.raises(BadOption, match=r"\*\*\*@host/") as caught:
            LOCAL[source](address)
        written.note(caught.value)
    with pytest.raises(SourceError, match=r"'\*\*\*@host/a.npy\?\*\*\*'") as missing:
        LOCAL[source](url.partition("://")[2])
    written.note(missing.value)


# Any: a path.
OTHERS: list[Callable[[Any], object]] = [
    lambda url: feedline.pack(url, "a.lmdb"),
    inspect,
    lambda url: len(ParquetDataset(url, remote=Remote(retries=0))),
    lambda url: FileDataset([url]),
    StreamDataset,
    lambda url: TarDataset([url, url]).stream(),
    lambda url: TarDataset(url.partition("://")[2] + "/*.tar").stream(),
]


@pytest.mark.parametrize("act", OTHERS)
def test_other_ways_to_pass_an_address(written: Written, act: Callable[[Any], object]) -> None:
    with pytest.raises(FeedlineError) as caught:
        act(written.url("127.0.0.1:9/a.parquet", scheme="https"))
    written.note(caught.value)
