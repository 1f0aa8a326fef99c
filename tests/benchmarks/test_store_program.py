"""The benchmarks' object store: its bandwidth, its counters, and the requests of S3 clients."""

from __future__ import annotations

import contextlib
import http.client
import json
import math
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import hypothesis.strategies as st
import pytest
from hypothesis import given

from benchmarks.store_program import COUNTS, PIECE, Link, Server, Store


class Clock:
    """A clock that tests set."""

    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


pieces = st.lists(st.tuples(st.floats(0, 3), st.integers(1, 1000)), min_size=1, max_size=30)


@given(pieces)
def test_a_link_is_never_faster_than_its_bandwidth(pieces: list[tuple[float, int]]) -> None:
    clock = Clock()
    link = Link(100.0, clock)
    passed = []
    for pause_s, count in pieces:
        clock.now_s += pause_s
        passed.append((clock.now_s, clock.now_s + link.reserve(count), count))
    for place, (asked_s, _, _) in enumerate(passed):
        total = 0
        for _, end_s, count in passed[place:]:
            total += count
            assert total <= 100.0 * (end_s - asked_s + Link.BURST_S) * (1 + 1e-9)


@given(st.lists(st.integers(1, 1000), min_size=1, max_size=30))
def test_a_busy_link_uses_its_full_bandwidth(counts: list[int]) -> None:
    link = Link(100.0, Clock())
    last_s = [link.reserve(count) for count in counts][-1]
    assert last_s == pytest.approx(sum(counts) / 100.0 - Link.BURST_S)


BODY = bytes(range(256)) * (PIECE // 256 * 2 + 3)


@contextlib.contextmanager
def serving(folder: Path, link: Link) -> Iterator[Server]:
    server = Server(Store(folder, 0.0, math.inf, link))
    server.daemon_threads = False  # threads are joined
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Server]:
    folder = tmp_path / "bucket" / "data"
    folder.mkdir(parents=True)
    (folder / "a.tar").write_bytes(BODY)
    (folder / "b&c.tar").write_bytes(b"xyz")
    (tmp_path / "bucket" / "other").write_bytes(b"")
    with serving(tmp_path, Link(math.inf)) as server:
        yield server


def ask(server: Server, path: str, method: str = "GET", **headers: str) -> tuple[http.client.HTTPResponse, bytes]:
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", server.server_port)) as connection:
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        return answer, answer.read()


def test_objects_and_ranges_are_sent_and_counted(served: Server) -> None:
    assert ask(served, "/bucket/data/a.tar")[1] == BODY
    answer, part = ask(served, "/bucket/data/a.tar", Range="bytes=5-9")
    assert (answer.status, part) == (206, BODY[5:10])
    assert answer.headers["Content-Range"] == f"bytes 5-9/{len(BODY)}"
    assert ask(served, "/bucket/data/b%26c.tar", Range="bytes=1-")[1] == b"yz"
    deadline = time.monotonic() + 60
    while (counts := json.loads(ask(served, COUNTS)[1]))["bytes"] != len(BODY) + 5 + 2:  # counted after the last one
        assert time.monotonic() < deadline, counts
    assert counts["requests"] == 3
    assert counts["cpu_s"] > 0


def test_objects_are_listed_by_prefix(served: Server) -> None:
    root = ElementTree.fromstring(ask(served, "/bucket?list-type=2&prefix=data%2F")[1])
    space = {"s3": "http://s3.amazonaws.com/doc/2006-03-01/"}
    found = {
        entry.findtext("s3:Key", "", space): int(entry.findtext("s3:Size", "", space))
        for entry in root.findall("s3:Contents", space)
    }
    assert found == {"data/a.tar": len(BODY), "data/b&c.tar": 3}
