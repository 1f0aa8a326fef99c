from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.datasets.formats.streams.server import Server, find_server, started_server
from tests.datasets.formats.streams.stores import Lines, Store, Stream


@pytest.fixture(scope="module", autouse=True)
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server | None]:
    """A server that starts before the checks for leaks."""
    with started_server(tmp_path_factory.mktemp("r")) as server:
        yield server


@pytest.fixture
def running(started: Server | None) -> Server:
    find_server()
    assert started is not None
    return started


@pytest.fixture(params=["lines", "redis"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return Lines(tmp_path) if request.param == "lines" else Stream(request.getfixturevalue("running"))
