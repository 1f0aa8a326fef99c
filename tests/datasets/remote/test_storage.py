from pathlib import Path

import pytest

from feedline.datasets.remote.storage import Storage, local_path, protocol_of


@pytest.mark.parametrize(
    ("address", "protocol"),
    [
        ("a.tar", ""),
        ("/data/a.tar", ""),
        ("file:///data/a.tar", ""),
        ("C:/data", ""),
        ("HTTP://host/a", "http"),
        ("s3://b/a", "s3"),
        ("x+y://b", "x+y"),
        ("://a", ""),
    ],
)
def test_protocols(address: str, protocol: str) -> None:
    assert protocol_of(address) == protocol


def test_local_paths() -> None:
    assert local_path("file:///a/b.tar") == "/a/b.tar"
    assert local_path("/a/b.tar") == "/a/b.tar"


def test_a_storage_can_be_closed_twice_and_used_again(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"hello")
    storage = Storage()
    for _ in range(2):
        blob = storage.open(f"file://{tmp_path}/a")
        assert blob.read(0, 2) == b"he"
        blob.close()
        storage.close()
        storage.close()
