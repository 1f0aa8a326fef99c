"""Fixtures of the comparison with torch's loader.

`parity` runs a test on every engine, `worker_parity` on those that have workers, `process_parity` where workers are
processes, `plain_parity` once, with no engine named. Engines with workers get two of them.
"""

import pytest

pytest.register_assert_rewrite("tests.parity.sides")  # so that a failed comparison shows the difference

from tests.parity.observation import Observation  # noqa: E402  after the line above, or it has no effect
from tests.parity.sides import Parity, feedline_side  # noqa: E402

WORKERS = {"inline": 0, "thread": 2, "process": 2}

_kept: dict[tuple[object, ...], Observation] = {}


def _parity(request: pytest.FixtureRequest, engine: str | None, workers: int) -> Parity:
    callspec = getattr(request.node, "callspec", None)
    ours = ("engine", "worker_parity")
    # A parameter is the same object whichever engine it is combined with.
    parameters = [(name, id(value)) for name, value in callspec.params.items() if name not in ours] if callspec else []
    key = (request.node.path, request.node.originalname, *sorted(parameters))
    return Parity(feedline_side(engine, workers), key, _kept)


@pytest.fixture
def parity(request: pytest.FixtureRequest, engine: str) -> Parity:
    return _parity(request, engine, WORKERS[engine])


@pytest.fixture(params=["thread", "process"])
def worker_parity(request: pytest.FixtureRequest) -> Parity:
    engine: str = request.param
    return _parity(request, engine, WORKERS[engine])


@pytest.fixture
def process_parity(request: pytest.FixtureRequest) -> Parity:
    return _parity(request, "process", WORKERS["process"])


@pytest.fixture
def inline_parity(request: pytest.FixtureRequest) -> Parity:
    return _parity(request, "inline", WORKERS["inline"])


@pytest.fixture
def plain_parity(request: pytest.FixtureRequest) -> Parity:
    return _parity(request, None, 0)
