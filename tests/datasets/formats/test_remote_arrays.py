"""Rows of .npy files on a web server: the same samples as from local files, with few requests."""

from __future__ import annotations

import io
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import feedline
from feedline.datasets import ArrayDataset, Remote, RemoteArrays
from feedline.datasets.storage import disk_cache, ranges
from feedline.errors import BadOption, CorruptSource, FeedlineError, SourceChanged
from tests.datasets.contract import SourceContract
from tests.datasets.storage.servers import WebServer, web_server

COUNT, PIECE = 60, 1000
ROW = 5 * 7 * 4


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_cache, "PIECE_BYTES", PIECE)
    monkeypatch.setattr(ranges, "REMOTE_GAP", 100)
    monkeypatch.setattr("feedline.datasets.storage.http._HEAD", 4096)


def write(folder: Path) -> None:
    np.save(folder / "x.npy", np.random.default_rng(0).random((COUNT, 5, 7), np.float32))
    np.save(folder / "y.npy", np.arange(COUNT) * 10)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[WebServer]:
    (tmp_path / "web").mkdir()
    write(tmp_path / "web")
    with web_server(tmp_path / "web") as server:
        yield server


def here(server: WebServer, **options: Any) -> ArrayDataset:
    return ArrayDataset({name: server.folder / f"{name}.npy" for name in "xy"}, **options)


def there(server: WebServer, **options: Any) -> RemoteArrays:
    return RemoteArrays({name: f"{server.address}/{name}.npy" for name in "xy"}, **options)


def asked(server: WebServer) -> list[int]:
    """Return how many bytes each request since the last call asked for."""
    sizes = [request.stop - request.start for request in server.requests]
    server.requests.clear()
    return sizes


def same(found: Any, expected: Any) -> None:
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert one.keys() == other.keys()
        for name in one:
            np.testing.assert_array_equal(one[name], other[name])


class TestContract(SourceContract):
    @pytest.fixture(autouse=True)
    def _server(self, server: WebServer) -> None:
        self.server = server

    def make_source(self, **options: Any) -> RemoteArrays:
        return there(self.server, **options)

    def samples(self) -> list[Any]:
        local = here(self.server)
        return [local[index] for index in range(COUNT)]


def test_samples_equal_those_of_local_files(server: WebServer) -> None:
    local, remote = here(server), there(server)
    assert repr(remote) == repr(local).replace("ArrayDataset", "RemoteArrays")
    indices = [7, 59, 0, -1, 7, 30]
    same(remote.__getitems__(indices), [local[index] for index in indices])
    remote.close()
    same([remote[3]], [local[3]])
    chosen = there(server, fields=("y", "x"))
    assert int(chosen[4][0]) == 40
    pair = RemoteArrays((f"{server.address}/y.npy",))
    assert pair[2] == (20,)
    assert int(RemoteArrays(f"{server.address}/y.npy")[2]) == 20
    with pytest.raises(IndexError):
        remote[COUNT]


def test_a_batch_fetches_its_rows_and_nothing_else(server: WebServer) -> None:
    remote = RemoteArrays(f"{server.address}/x.npy")
    asked(server)
    remote.__getitems__([10, 50, 11, 12, 30])
    assert sorted(asked(server)) == [ROW, ROW, 3 * ROW]


def test_streams_are_fetched_piece_by_piece_and_resume_exactly(server: WebServer) -> None:
    remote = there(server)
    assert remote.row_group_sizes.tolist() == [PIECE // ROW] * 8 + [COUNT - 8 * (PIECE // ROW)]
    same(list(remote.stream()), [here(server)[index] for index in range(COUNT)])
    asked(server)
    stream = remote.stream(shuffle=True, seed=1, window=2)
    found = [int(sample["y"]) // 10 for sample in stream]
    assert sorted(found) == list(range(COUNT))
    assert found != sorted(found)
    assert len(asked(server)) <= 2 * len(remote.row_group_sizes)

    def loader() -> Any:
        return feedline.Loader(there(server).stream(shuffle=True, seed=1, window=2), 8, workers=2, engine="thread")

    whole, own = [batch["y"].tolist() for batch in loader()], loader()
    batches = iter(own)
    begun = [next(batches)["y"].tolist() for _ in range(3)]
    rest = loader()
    rest.load_state_dict(own.state_dict())
    assert begun + [batch["y"].tolist() for batch in rest] == whole
    own.close()


def test_a_cache_keeps_what_it_can(server: WebServer, tmp_path: Path) -> None:
    count = 400
    np.save(server.folder / "long.npy", np.repeat(np.arange(count), 16).reshape(count, 16))
    size = count * 16 * 8
    remote = RemoteArrays(f"{server.address}/long.npy", remote=Remote(cache=tmp_path / "c", cache_bytes=size // 2))
    counts = []
    for epoch in range(2):
        order = np.random.default_rng(epoch).permutation(count).reshape(-1, 20)
        assert all((np.array(remote.__getitems__(some))[:, 0] == some).all() for some in order)
        counts.append(sum(asked(server)))
    assert counts[0] <= 1.2 * size
    assert counts[1] < 0.7 * size, [count / size for count in counts]
    assert remote.remote.cache_stats().fetched == pytest.approx(sum(counts), rel=0.01)
    remote.close()


def test_only_addresses_and_versions_are_pickled(server: WebServer) -> None:
    remote = there(server)
    list(remote.stream())
    data = pickle.dumps(remote)
    assert len(data) < 4000
    asked(server)
    same([pickle.loads(data)[5]], [here(server)[5]])
    assert len(asked(server)) == 2, "one request for each array"


def test_a_changed_file_never_mixes_versions(server: WebServer) -> None:
    server.tags["y.npy"] = '"one"'
    remote = there(server)
    assert remote[0]["y"] == 0
    server.tags["y.npy"] = '"two"'
    with pytest.raises(SourceChanged, match=r"y\.npy was changed"):
        remote[1]
    with pytest.raises(SourceChanged, match=r"y\.npy was changed"):
        next(iter(remote.stream()))


def saved(array: Any, **options: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, array, **options)
    return file.getvalue()


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (saved(np.asfortranarray(np.zeros((5, 4)))), BadOption),
        (saved(np.array([{}, {}]), allow_pickle=True), BadOption),
        (saved(np.zeros(5, ">f8")), BadOption),
        (saved(np.float32(3)), BadOption),
        (saved(np.zeros((5, 0))), BadOption),
        (saved(np.zeros((1000, 9)))[:-1], CorruptSource),
        (b"PK\3\4", CorruptSource),
        (b"", CorruptSource),
    ],
)
def test_rejects_files_that_cannot_be_read_row_by_row(
    content: bytes, error: type[FeedlineError], server: WebServer
) -> None:
    (server.folder / "bad.npy").write_bytes(content)
    with pytest.raises(error, match=r"bad\.npy"):
        RemoteArrays(f"{server.address}/bad.npy")


@pytest.mark.parametrize("given", ["x.npy", Path("x.npy"), np.zeros(3), ["http://host/x.npy"], {}])
def test_what_is_no_address_is_rejected(given: Any) -> None:
    with pytest.raises(BadOption, match=r"address|at least one array"):
        RemoteArrays(given)


def test_bad_arguments(server: WebServer) -> None:
    np.save(server.folder / "short.npy", np.zeros(7))
    address = f"{server.address}/x.npy"
    with pytest.raises(BadOption, match=r"x\.npy has 60, .*short\.npy has 7"):
        RemoteArrays((address, f"{server.address}/short.npy"))
    with pytest.raises(BadOption, match="no names"):
        RemoteArrays(address, fields="x")
    with pytest.raises(BadOption, match="names 'z'"):
        there(server, fields="z")


def test_an_array_without_rows(server: WebServer) -> None:
    np.save(server.folder / "none.npy", np.zeros((0, 4)))
    remote = RemoteArrays(f"{server.address}/none.npy")
    assert len(remote) == 0
    assert list(remote.stream()) == []
