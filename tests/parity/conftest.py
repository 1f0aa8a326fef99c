"""Fixtures of the comparison with torch's loader.

`parity` runs a test on every engine, `worker_parity` on those with workers, `process_parity` with worker processes,
`inline_parity` without workers, `plain_parity` once, without naming an engine. Threads are left to `make slow`. Engines
with workers get two of them, or as many as the marker `workers` says, since torch's loader has to start a process for
each.
"""

import pytest

pytest.register_assert_rewrite("tests.parity.sides")  # makes a failed comparison show the difference

from tests.parity.observation import Observation  # noqa: E402  after the line above, or it has no effect
from tests.parity.sides import Parity, feedline_side  # noqa: E402

_kept: dict[tuple[object, ...], Observation] = {}


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "workers(count): how many workers the loaders of a test have, if any")


def _parity(request: pytest.FixtureRequest, engine: str | None) -> Parity:
    marker = request.node.get_closest_marker("workers")
    workers = 0 if engine in ("inline", None) else marker.args[0] if marker else 2
    callspec = getattr(request.node, "callspec", None)
    ours = ("parity", "worker_parity")
    # A parameter is the same object whichever engine it is combined with.
    parameters = [(name, id(value)) for name, value in callspec.params.items() if name not in ours] if callspec else []
    key = (request.node.path, request.node.originalname, *sorted(parameters))
    return Parity(feedline_side(engine, workers), key, _kept)


THREADS = pytest.param("thread", marks=pytest.mark.slow)


@pytest.fixture(params=["inline", "process", THREADS])
def parity(request: pytest.FixtureRequest) -> Parity:
    return _parity(request, request.param)


@pytest.fixture(params=["process", THREADS])
def worker_parity(request: pytest.FixtureRequest) -> Parity:
    return _parity(request, request.param)


@pytest.fixture
def process_parity(request: pytest.FixtureRequest) -> Parity:
    return _parity(request, "process")


@pytest.fixture
def inline_parity(request: pytest.FixtureRequest) -> Parity:
    return _parity(request, "inline")


@pytest.fixture
def plain_parity(request: pytest.FixtureRequest) -> Parity:
    return _parity(request, None)
