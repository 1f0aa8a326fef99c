"""Token files on a web server and in stores: the samples of local files, in few requests, despite faults."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import feedline
from feedline.datasets import Remote
from feedline.datasets.storage import disk_cache, ranges
from feedline.datasets.storage.blob import RetryPolicy
from feedline.errors import BadOption, CorruptSource, SourceChanged, SourceError
from feedline.samplers import BlockSampler
from feedline.testing.asserting import assert_same
from feedline.text import TokenDataset
from feedline.text.token_file import HEADER_BYTES
from tests.datasets.storage.servers import Request, WebServer, web_server
from tests.sampling import examples
from tests.text.token_files import files, plain, write

PIECE = 2048
BLOCK = 16
RANDOM = np.random.default_rng(3)
DOCUMENTS = [[RANDOM.integers(0, 60_000, int(size)).tolist() for size in RANDOM.integers(0, 300, 40)] for _ in range(3)]


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make small files need many pieces and many requests."""
    monkeypatch.setattr(disk_cache, "PIECE_BYTES", PIECE)
    monkeypatch.setattr(ranges, "REMOTE_GAP", 64)
    monkeypatch.setattr("feedline.datasets.storage.http._HEAD", HEADER_BYTES)
    monkeypatch.setattr(RetryPolicy, "wait", lambda self, attempt: None)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("www")
    for number, documents in enumerate(DOCUMENTS):
        write(folder / f"tokens-{number}.bin", documents, "uint32" if number == 1 else "uint16")
    return folder


@pytest.fixture
def server(folder: Path) -> Iterator[WebServer]:
    with web_server(folder) as server:
        yield server


# Any, throughout: options as a user gives them, and batches of any form.
def remote(server: WebServer, block: int = BLOCK, **options: Any) -> TokenDataset:
    return TokenDataset([f"{server.address}/tokens-{number}.bin" for number in range(3)], block, **options)


def local(folder: Path, block: int = BLOCK, **options: Any) -> TokenDataset:
    return TokenDataset([folder / f"tokens-{number}.bin" for number in range(3)], block, **options)


def own_server(tmp_path: Path, documents: Any = DOCUMENTS[0]) -> Any:
    """Serve a folder that the test may change."""
    write(tmp_path / "tokens-0.bin", documents)
    return web_server(tmp_path)


@settings(max_examples=examples(30), deadline=None)
@given(data=st.data(), files=files, block=st.integers(4, 40), stride=st.none() | st.integers(4, 50))
def test_samples_equal_those_of_local_files(
    data: st.DataObject, files: Any, block: int, stride: int | None, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("tokens")
    for number, one in enumerate(files):
        write(folder / f"{number}.bin", one, data.draw(st.sampled_from(["uint16", "uint32"])))
    labels: Any = data.draw(st.sampled_from(["shifted", "same", None]))
    options: Any = {
        "stride": stride,
        "labels": labels,
        "mask_crossing": labels is not None and data.draw(st.booleans()),
        "positions": data.draw(st.sampled_from([False, True, "document"])),
        "segment_ids": data.draw(st.booleans()),
    }
    with pytest.MonkeyPatch.context() as patch, web_server(folder) as server:
        patch.setattr(disk_cache, "PIECE_BYTES", data.draw(st.sampled_from([128, 4096 + 64, 1 << 22])))
        patch.setattr(ranges, "REMOTE_GAP", data.draw(st.sampled_from([0, 20, 1 << 18])))
        paths: list[Any] = [f"{server.address}/{number}.bin" for number in range(len(files))]
        if len(files) > 1 and data.draw(st.booleans()):
            paths[0] = folder / "0.bin"
        expected = TokenDataset([folder / f"{number}.bin" for number in range(len(files))], block, **options)
        held = data.draw(st.sampled_from([0, 4096, 1 << 27]))
        with closing(TokenDataset(paths, block, cache_bytes=held, **options)) as found:
            assert len(found) == len(expected)
            most = max(0, len(expected) - 1)
            for _ in range(3):
                chosen = np.array(data.draw(st.lists(st.integers(0, most), max_size=8 if len(expected) else 0)))
                assert_same(found.read_columns(chosen), expected.read_columns(chosen))
            np.testing.assert_array_equal(found.documents.lengths, expected.documents.lengths)
            assert plain_all(found.documents) == plain_all(expected.documents)
            assert found.row_group_sizes.sum() == len(found)
            assert plain_all(found.stream()) == plain_all(expected)


def plain_all(samples: Any) -> list[Any]:
    return [plain(sample) for sample in samples]


@pytest.mark.parametrize(("kind", "engine"), [("map", "thread"), ("sampler", "thread"), ("stream", "process")])
def test_loaders_resume_exactly(server: WebServer, folder: Path, engine: str, kind: str, tmp_path: Path) -> None:
    def loader(dataset: TokenDataset, workers: int) -> Any:
        options: Any = {"workers": workers, "engine": engine if workers else "inline", "seed": 4}
        if kind == "stream":
            return feedline.Loader(dataset.stream(shuffle=True, seed=4, window=2), 32, **options)
        if kind == "sampler":
            return feedline.Loader(dataset, 32, sampler=BlockSampler(dataset.row_group_sizes, 2, seed=4), **options)
        return feedline.Loader(dataset, 32, shuffle=True, **options)

    expected = [plain(batch) for batch in loader(local(folder, segment_ids=True), 0)]
    dataset = remote(server, segment_ids=True, cache_bytes=4 * PIECE, remote=Remote(cache=tmp_path, cache_bytes="1 MB"))
    running = iter(first := loader(dataset, 2))
    done = len(expected) // 2
    assert [plain(next(running)) for _ in range(done)] == expected[:done]
    state = json.loads(json.dumps(first.state_dict()))
    assert [plain(batch) for batch in running] == expected[done:]
    resumed = loader(dataset, 0)
    resumed.load_state_dict(state)
    assert [plain(batch) for batch in resumed] == expected[done:]
    dataset.close()


def test_a_block_sampler_stays_within_pieces(server: WebServer, folder: Path) -> None:
    dataset = remote(server, labels=None)
    sizes = dataset.row_group_sizes
    np.testing.assert_array_equal(sizes, local(folder, labels=None).row_group_sizes)
    assert sizes.sum() == len(dataset)
    assert (sizes <= -(-PIECE // (2 * BLOCK))).all()
    server.requests.clear()
    for batch in feedline.Loader(dataset, 64, sampler=BlockSampler(sizes, 1, seed=1)):
        assert len(batch)
    pieces = sum(-(-file.tokens_end // PIECE) for file in dataset.files)
    assert len(server.requests) < 3 * pieces, "one piece, and a block that extends into the next piece"
    dataset.close()


def test_opening_sends_one_request_per_file_and_one_for_its_documents(server: WebServer) -> None:
    remote(server).close()
    assert [(one.start, one.stop) for one in server.requests] == [(0, HEADER_BYTES)] * 3
    server.requests.clear()
    dataset = remote(server, segment_ids=True)
    assert sorted((one.path, one.start, one.stop) for one in server.requests if one.start) == [
        (f"tokens-{number}.bin", file.offsets_at, file.size) for number, file in enumerate(dataset.files)
    ]
    assert len(server.requests) == 6
    server.requests.clear()
    assert dataset[3] is not None
    assert len(server.requests) == 1, "document boundaries are already known"
    dataset.close()


def test_nearby_blocks_share_a_request(server: WebServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_cache, "PIECE_BYTES", 1 << 22)
    dataset = remote(server, labels=None)
    server.requests.clear()
    dataset.read_columns(np.array([10, 11, 13, 9]))
    assert [(one.start, one.stop) for one in server.requests] == [
        (HEADER_BYTES + 9 * 2 * BLOCK, HEADER_BYTES + 14 * 2 * BLOCK)
    ]
    server.requests.clear()
    ends = np.cumsum([file.token_count for file in dataset.files]) // BLOCK
    dataset.read_columns(np.array([0, 40, 100, ends[0] + 5, ends[1] + 5, ends[1] + 50]))
    assert len(server.requests) == 6
    assert sum(one.stop - one.start for one in server.requests) == (5 * 2 + 4) * BLOCK
    dataset.close()


def test_a_second_epoch_comes_from_the_disk(server: WebServer, folder: Path, tmp_path: Path) -> None:
    options: Any = {"remote": Remote(cache=tmp_path / "shards", cache_bytes="1 MB"), "cache_bytes": 2 * PIECE}
    dataset = remote(server, segment_ids=True, **options)
    server.requests.clear()
    loader = feedline.Loader(dataset, 32, shuffle=True, seed=2)
    expected = feedline.Loader(local(folder, segment_ids=True), 32, shuffle=True, seed=2)
    assert [plain(batch) for batch in loader] == [plain(batch) for batch in expected]
    asked = [(one.path, one.start) for one in server.requests]
    assert len(asked) == len(set(asked)), "each piece is fetched once"
    server.requests.clear()
    assert len(list(loader)) == len(loader)
    for _ in range(2):
        dataset = pickle.loads(pickle.dumps(dataset))
        assert plain(dataset[5]) == plain(local(folder, segment_ids=True)[5])
    assert not server.requests
    dataset.close()


@pytest.mark.parametrize("fault", ["404", "drop"])
def test_a_file_that_cannot_be_reached_is_named(server: WebServer, fault: str) -> None:
    dataset = remote(server)
    server.fault = lambda request: fault
    for act in (lambda: dataset[0], lambda: dataset.documents[0], lambda: remote(server)):
        with pytest.raises(SourceError, match=r"tokens-0\.bin"):
            act()
    dataset.close()


def test_faults_are_retried(server: WebServer, folder: Path) -> None:
    seen = set[tuple[str, int]]()

    def once(request: Request) -> str | None:
        if (request.path, request.stop) in seen:  # the rest of a range has the same end
            return None
        seen.add((request.path, request.stop))
        return "drop"

    server.fault = once
    dataset = remote(server, segment_ids=True)
    assert plain_all(dataset.stream()) == plain_all(local(folder, segment_ids=True))
    assert len(seen) > 20
    dataset.close()


def test_changed_files_are_detected(tmp_path: Path) -> None:
    with own_server(tmp_path) as server:
        server.tags["tokens-0.bin"] = '"one"'
        dataset = TokenDataset(
            f"{server.address}/tokens-0.bin", 8, remote=Remote(cache=tmp_path / "c", cache_bytes="1MB")
        )
        copies = [dataset, pickle.loads(pickle.dumps(dataset))]
        expected = plain(dataset[0])
        server.tags["tokens-0.bin"] = '"two"'
        for copy in copies:
            with pytest.raises(SourceChanged, match=r"tokens-0.bin was changed"):
                _ = copy[len(copy) - 1]
            with pytest.raises(SourceChanged, match=r"tokens-0.bin was changed"):
                _ = copy.documents[0]
            assert plain(copy[0]) == expected, "cached samples must be of the version that was opened"
            copy.close()
        reopened = TokenDataset(f"{server.address}/tokens-0.bin", 8)
        assert plain(reopened[0]) == expected
        reopened.close()


def test_damaged_files_are_rejected(tmp_path: Path) -> None:
    with own_server(tmp_path) as server:
        path, address = tmp_path / "tokens-0.bin", f"{server.address}/tokens-0.bin"
        whole = path.read_bytes()
        for size in (0, 7, 100, HEADER_BYTES, len(whole) - 1):
            path.write_bytes(whole[:size])
            with pytest.raises((CorruptSource, BadOption), match=r"tokens-0\.bin"):
                TokenDataset(address)
        for damaged in (whole + b"x", whole[:30] + b"\xff" + whole[31:]):
            path.write_bytes(damaged)
            with pytest.raises(CorruptSource, match=r"http://127.*tokens-0\.bin"):
                TokenDataset(address)
        path.write_bytes(whole[:-20] + bytes([whole[-20] ^ 1]) + whole[-19:])
        TokenDataset(address).close()  # documents are not read
        with pytest.raises(CorruptSource, match="list of documents"):
            TokenDataset(address, segment_ids=True)
        dataset = TokenDataset(address)
        with pytest.raises(CorruptSource, match="list of documents"):
            _ = dataset.documents[0]
        dataset.close()


def test_sizes_that_a_server_declares_are_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with own_server(tmp_path, [[1], list(range(3_000))]) as server:
        address = f"{server.address}/tokens-0.bin"
        monkeypatch.setenv("FEEDLINE_MAX_SAMPLE_BYTES", "1000")
        dataset = TokenDataset(address, 8, segment_ids=True)
        assert dataset.documents[0].tolist() == [1]
        with pytest.raises(CorruptSource, match=r"Document 1 .* 6000 .* 1000"):
            _ = dataset.documents[1]
        monkeypatch.setenv("FEEDLINE_MAX_SAMPLE_BYTES", "20")
        with pytest.raises(CorruptSource, match=r"list of documents .* 20"):
            TokenDataset(address, segment_ids=True)
        dataset.close()


def test_errors_and_reprs_do_not_reveal_secrets(server: WebServer) -> None:
    address = server.address.replace("//", "//ada:secret@")
    dataset = TokenDataset(f"{address}/tokens-0.bin?signature=secret", remote=Remote(storage_options={"key": "secret"}))
    shown = f"{dataset!r} {dataset.files!r} {vars(dataset)!r} {dataset.documents!r}"
    server.fault = lambda request: "404"
    with pytest.raises(SourceError) as caught:
        _ = dataset[0]
    assert "secret" not in shown + str(caught.value)
    dataset.close()


def test_a_store_without_versions(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    system = fsspec.filesystem("memory")
    system.pipe({f"/tokens/{name}": (folder / f"tokens-{name}").read_bytes() for name in ("0.bin", "1.bin")})
    try:
        expected = TokenDataset([folder / f"tokens-{number}.bin" for number in range(2)], BLOCK)
        for paths in ("memory://tokens", "memory://tokens/*.bin", ["memory://tokens/0.bin", "memory://tokens/1.bin"]):
            dataset = TokenDataset(paths, BLOCK)
            assert plain_all(dataset.stream()) == plain_all(expected)
            dataset.close()
        fetch = type(system).cat_file

        def fetch_and_change(*given: Any, **options: Any) -> Any:
            content = fetch(*given, **options)
            system.pipe("/tokens/0.bin", b"other")
            return content

        monkeypatch.setattr(type(system), "cat_file", fetch_and_change)
        for _ in range(2):
            with pytest.raises(SourceChanged, match=r"0\.bin"):
                _ = dataset[0]
        with pytest.raises(SourceError, match=r"none-\*\.bin"):
            TokenDataset("memory://tokens/none-*.bin")
        dataset.close()
    finally:
        system.rm("/tokens", recursive=True)
