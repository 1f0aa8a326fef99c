from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from feedline.datasets.framework.places import found_places
from feedline.datasets.framework.remote_files import found_remote
from feedline.datasets.storage.storage import Storage
from feedline.errors import SourceError
from tests.datasets.storage.servers import start_fsspec


@pytest.fixture(scope="module", autouse=True)
def fsspec() -> Any:
    """Return the package, whose threads start before the checks for leaks."""
    found = pytest.importorskip("fsspec")
    start_fsspec()
    return found


@pytest.fixture
def store(fsspec: Any) -> Iterator[Any]:
    """Return a function that puts files into a folder of a store."""
    system = fsspec.filesystem("memory")
    yield lambda *names: [system.pipe_file(f"/files/{name}", b"x") for name in names]
    system.rm("/files", recursive=True)


@pytest.mark.parametrize("folder", ["memory://files", "memory://files/", "memory:///files"])
def test_a_folder_of_a_store_has_the_files_that_a_local_one_has(store: Any, folder: str) -> None:
    store("a-10.csv", "a-9.csv", "2026/b.csv", "c.tfrecord-00000-of-00002.gz", "d.txt", "_temporary/0/a.csv")
    store(".ipynb_checkpoints/a.csv", "_a.csv")
    endings = (".csv", ".tfrecord-*", ".tfrecord-*.gz")
    names = ["2026/b.csv", "a-9.csv", "a-10.csv", "c.tfrecord-00000-of-00002.gz"]
    expected = [f"memory://files/{name}" for name in names]
    storage = Storage()
    assert [place.address for place in found_places(folder, storage, endings)] == expected
    assert [getattr(one, "address", one) for one in found_remote(folder, storage, endings)] == expected
    storage.close()


def test_a_folder_without_such_files(store: Any) -> None:
    store("d.txt", "_temporary/0/a.csv")
    storage = Storage()
    with pytest.raises(SourceError, match=r"memory://files has no files that end in \.csv"):
        found_places("memory://files", storage, (".csv",))
    storage.close()
