import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from feedline.datasets import Remote
from feedline.datasets.storage import http
from feedline.datasets.storage.blob import RetryPolicy
from feedline.datasets.storage.http import Connection, Connections, HttpBlob
from feedline.datasets.storage.storage import Storage
from feedline.errors import SourceChanged, SourceError
from tests.datasets.storage.servers import SURPLUS, Request, WebServer, web_server

DATA = bytes(i * 7 % 251 for i in range(300_000))
QUICK = Remote(retries=3, timeout_s=10)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[WebServer]:
    (tmp_path / "a.bin").write_bytes(DATA)
    (tmp_path / "empty").write_bytes(b"")
    with web_server(tmp_path) as server:
        yield server


@pytest.fixture
def storage() -> Iterator[Storage]:
    storage = Storage(QUICK)
    yield storage
    storage.close()


def test_ranges_of_a_file(server: WebServer, storage: Storage, tmp_path: Path) -> None:
    blob = storage.open(f"{server.address}/a.bin")
    assert blob.size == len(DATA)
    assert blob.tag
    for start, stop in ((0, 1), (5, 70_000), (65_535, 65_537), (299_999, 300_000), (0, 300_000), (7, 7)):
        assert blob.read(start, stop) == DATA[start:stop]
    assert server.connections == 1
    assert storage.open(f"{server.address}/empty").read(0, 0) == b""
    (tmp_path / "a b.bin").write_bytes(b"hello")
    assert storage.open(f"{server.address}/a b.bin").read(1, 3) == b"el"


def test_a_dropped_connection_is_resumed_at_the_next_byte(server: WebServer, storage: Storage) -> None:
    blob = storage.open(f"{server.address}/a.bin")
    before = len(server.requests)
    server.fault = lambda request: "drop" if request.number < before + 2 else None
    assert blob.read(100_000, 200_000) == DATA[100_000:200_000]
    starts = [request.start for request in server.requests[before:]]
    assert starts == [100_000, 150_000, 175_000]


def test_an_idle_connection_closed_by_the_server_does_not_count_as_a_failed_attempt(server: WebServer) -> None:
    storage = Storage(Remote(retries=0))
    blob = storage.open(f"{server.address}/a.bin")
    server.close_all()
    assert blob.read(100_000, 100_003) == DATA[100_000:100_003]
    storage.close()


@pytest.mark.parametrize("fault", ["drop", "refuse", "503", "429"])
def test_retries_are_limited(server: WebServer, storage: Storage, fault: str) -> None:
    blob = storage.open(f"{server.address}/a.bin")
    before = len(server.requests)
    server.fault = lambda request: fault
    with pytest.raises(SourceError, match=r"a\.bin cannot be read at byte \d+: .*tried 4 times.*retries="):
        blob.read(100_000, 100_800)
    # A reused connection may have been closed while idle, so one more request does not count as an attempt.
    assert len(server.requests) - before in (4, 5)


@pytest.mark.parametrize(("name", "fault"), [("none.bin", None), ("a.bin", "403"), ("a.bin", "whole")])
def test_a_refused_file_is_not_retried(server: WebServer, storage: Storage, name: str, fault: str | None) -> None:
    """It is missing, forbidden, or on a server without support for ranges."""
    server.fault = lambda request: fault
    with pytest.raises(SourceError, match=name):
        storage.open(f"{server.address}/{name}")
    assert len(server.requests) <= 1


def test_redirects_are_followed_up_to_a_limit(server: WebServer, storage: Storage) -> None:
    def once(request: Request) -> str | None:
        return "/a.bin?signed=1" if request.path == "empty" else None

    server.fault = once
    blob = storage.open(f"{server.address}/empty")
    assert blob.read(200_000, 200_005) == DATA[200_000:200_005]
    server.fault = lambda request: "/a.bin"
    with pytest.raises(SourceError, match="redirected more than"):
        storage.open(f"{server.address}/a.bin")
    server.fault = lambda request: "ftp://elsewhere/a.bin"
    with pytest.raises(SourceError, match="not on the web"):
        storage.open(f"{server.address}/a.bin")


@pytest.mark.parametrize("status", ["401", "403", "404"])
def test_an_expired_signed_address_is_requested_again(server: WebServer, storage: Storage, status: str) -> None:
    expired = 2

    def fault(request: Request) -> str | None:
        if request.path == "empty":
            return "/a.bin?signed=1"
        return status if request.number == expired else None

    server.fault = fault
    blob = storage.open(f"{server.address}/empty")  # requests 0 and 1
    assert blob.read(200_000, 200_005) == DATA[200_000:200_005]
    assert blob.read(200_005, 200_010) == DATA[200_005:200_010]
    assert [request.path for request in server.requests] == ["empty", "a.bin", "a.bin", "empty", "a.bin", "a.bin"]
    server.fault = lambda request: "/a.bin?signed=2" if request.path == "empty" else status
    with pytest.raises(SourceError, match=f"empty: the server answers {status}") as caught:
        blob.read(200_010, 200_015)
    assert type(caught.value) is SourceError
    assert len(server.requests) == 9  # the original address is requested once more


@pytest.mark.parametrize("how", ["larger", "smaller", "tag"])
def test_a_changed_file_is_detected(server: WebServer, storage: Storage, how: str, tmp_path: Path) -> None:
    server.tags["a.bin"] = '"1"'
    blob = storage.open(f"{server.address}/a.bin")
    if how == "tag":
        server.tags["a.bin"] = '"2"'
    else:
        (tmp_path / "a.bin").write_bytes(DATA + b"x" if how == "larger" else DATA[:90_000])
    with pytest.raises(SourceChanged, match=r"a\.bin"):
        blob.read(100_000, 100_010)


def test_pauses_between_attempts_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[float] = []
    monkeypatch.setattr(time, "sleep", waited.append)
    monkeypatch.setattr(RetryPolicy, "pause_s", 0.1)
    for attempt in (1, 2, 3, 30):
        RetryPolicy().wait(attempt)
    assert 0.05 <= waited[0] <= 0.15
    assert 0.1 <= waited[1] <= 0.3
    assert 0.2 <= waited[2] <= 0.6
    assert waited[3] <= 45


def test_a_connection_released_after_close_is_closed(server: WebServer) -> None:
    """A thread that reads ahead may release its connection after the close."""
    connections = Connections(10)
    blob = HttpBlob(f"{server.address}/a.bin", connections, QUICK.retry_policy)
    connection, _ = connections.acquire("http", server.address.removeprefix("http://"))
    assert connection.sock is not None  # the connection of the first read
    connections.close()
    connections.release("http", server.address.removeprefix("http://"), connection)
    assert connection.sock is None
    assert blob.read(100_000, 100_003) == DATA[100_000:100_003]  # and no connection stays open


def test_bytes_beyond_the_range_are_not_read(server: WebServer, storage: Storage) -> None:
    blob = storage.open(f"{server.address}/a.bin")
    server.fault = lambda request: "surplus"
    assert blob.read(100_000, 200_000) == DATA[100_000:200_000]
    server.fault = lambda request: "/b.bin?flood" if request.path == "a.bin" else None
    (server.folder / "b.bin").write_bytes(DATA)
    assert storage.open(f"{server.address}/a.bin").read(100_000, 200_000) == DATA[100_000:200_000]
    server.close_all()
    assert server.flooded < SURPLUS // 2


@pytest.mark.parametrize(
    "content_range",
    ["lie", "beyond", "bytes 100000-x/300000", f"bytes 100000-100009/{'9' * 5000}", "bytes 100000-99999/300000"],
)
def test_rejects_malformed_ranges(server: WebServer, storage: Storage, content_range: str) -> None:
    blob = storage.open(f"{server.address}/a.bin")
    server.fault = lambda request: content_range
    with pytest.raises(SourceError, match=r"a\.bin"):
        blob.read(100_000, 200_000)


class TestRedirects:
    """From a public address to a private one: here the port decides which of the two a loopback server counts as."""

    @pytest.fixture
    def inside(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[WebServer]:
        with web_server(tmp_path) as private:
            monkeypatch.setattr(http, "_is_private", lambda connection, host: connection.port == private.server_port)
            yield private

    @pytest.mark.parametrize("is_known", [True, False])
    def test_into_a_private_network(
        self, server: WebServer, inside: WebServer, storage: Storage, is_known: bool
    ) -> None:
        blob = storage.open(f"{server.address}/a.bin") if is_known else None
        server.fault = lambda request: f"{inside.address}/a.bin?token=s3cret"
        with pytest.raises(SourceError, match=r"a private one.*unsafe_redirects=True") as caught:
            blob.read(200_000, 200_005) if blob else storage.open(f"{server.address}/a.bin")
        assert "s3cret" not in str(caught.value)
        assert not inside.requests
        allowed = Storage(Remote(unsafe_redirects=True))
        assert allowed.open(f"{server.address}/a.bin").read(200_000, 200_005) == DATA[200_000:200_005]
        allowed.close()

    def test_within_a_private_network(self, server: WebServer, inside: WebServer, storage: Storage) -> None:
        inside.fault = lambda request: f"{inside.address}/a.bin" if request.path == "empty" else None
        assert storage.open(f"{inside.address}/empty").read(200_000, 200_005) == DATA[200_000:200_005]

    @pytest.mark.parametrize(
        "target",
        [
            *("http://[", "http://host:port/", "http://a..b/", "//", ""),
            f"http://{'a' * 70}.invalid/",
            "http://a\u2100.b/",
        ],
    )
    def test_to_malformed_addresses(self, server: WebServer, target: str) -> None:
        server.fault = lambda request: f"http://x@{target.removeprefix('http://')}".encode().decode("latin-1")
        storage = Storage(Remote(retries=0))
        with pytest.raises(SourceError, match=r"a\.bin"):
            storage.open(f"{server.address}/a.bin")
        storage.close()


class _Peer:
    def __init__(self, address: str) -> None:
        self._address = address

    def getpeername(self) -> tuple[str, int]:
        return self._address, 80


@pytest.mark.parametrize(
    "address", ["127.0.0.1", "10.1.2.3", "169.254.169.254", "::1", "fe80::1%eth0", "::ffff:10.0.0.1"]
)
def test_private_addresses(address: str) -> None:
    connection = Connection("elsewhere")
    connection.sock = _Peer(address)
    assert http._is_private(connection, "elsewhere")
    connection.sock = _Peer("8.8.8.8")
    assert not http._is_private(connection, "elsewhere")


@pytest.mark.parametrize(
    ("host", "is_private"), [("localhost", True), ("192.168.0.1", True), ("8.8.8.8", False), ("a.b", False)]
)
def test_private_addresses_behind_a_proxy(host: str, is_private: bool) -> None:
    assert http._is_private(http._ThroughProxy("proxy", host, {}, 1.0), host) == is_private
    tunnel = Connection("proxy")
    tunnel.set_tunnel(host)
    assert http._is_private(tunnel, host) == is_private
