"""How starts that fail are explained."""

from __future__ import annotations

import errno
import pickle

import pytest

from feedline.abc.worker_spec import WorkerSpec
from feedline.collate import default
from feedline.errors import NotPicklable, TooManyOpenFiles, WorkerStartError
from feedline.frameworks.numpy import NumpyFramework
from feedline.types import DatasetKind
from feedline.workers import lifetime
from feedline.workers.threads import ThreadEngine


class RecordsClose(ThreadEngine):
    """An engine that records whether it was closed."""

    def __init__(self) -> None:
        super().__init__(3)
        self.closed = False

    def close(self) -> None:
        self.closed = True


@pytest.mark.parametrize(
    ("raised", "expected", "advice"),
    [
        (OSError(errno.EMFILE, "Too many open files"), TooManyOpenFiles, "starting 3 workers.*ulimit -n"),
        (OSError(errno.EAGAIN, "busy"), WorkerStartError, "3 workers could not be started.*ulimit -u"),
        (OSError(errno.EIO, "broken"), OSError, "broken"),
        (KeyboardInterrupt(), KeyboardInterrupt, "^$"),
    ],
)
def test_a_failed_start_is_explained_and_closes_the_engine(
    raised: BaseException, expected: type[BaseException], advice: str
) -> None:
    engine = RecordsClose()
    with pytest.raises(expected, match=advice), lifetime.explained_start(engine, None):
        raise raised
    assert engine.closed


def test_the_unpicklable_object_is_named() -> None:
    engine = RecordsClose()
    dataset = {"rows": [1, 2], "open": lambda: None}
    spec = WorkerSpec(dataset, DatasetKind.MAP, default, NumpyFramework(), worker_count=3, base_seed=0)
    with (
        pytest.warns(UserWarning, match="Got pickle error"),
        pytest.raises(NotPicklable, match=r"(?s)lambda") as caught,
        lifetime.explained_start(engine, spec),
    ):
        pickle.dumps(dataset)
    assert engine.closed
    assert isinstance(caught.value.__cause__, (AttributeError, pickle.PicklingError)), "pickle's own error"
