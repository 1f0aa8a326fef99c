"""A trainer that forks while a loader is running."""

from __future__ import annotations

import pytest

from tests.faults.programs import running

pytestmark = pytest.mark.sample(7)

FORKS = """
loader = Loader(Numbers(), 4, workers=2, persistent=sys.argv[1] == "persistent", engine=sys.argv[2])
batches = iter(loader)
kept = [next(batches) for _ in range(3)]
child = os.fork()
if child == 0:
    assert all((batch == np.arange(4 * place, 4 * place + 4)[:, None]).all() for place, batch in enumerate(kept))
    sys.exit(0)  # with finalizers and exit handlers, as a child of a user's own would
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
numbers = [int(batch[0, 0]) for batch in [*kept, *batches]]
assert numbers == list(range(0, 64, 4)), numbers
assert all((batch == np.arange(4 * place, 4 * place + 4)[:, None]).all() for place, batch in enumerate(kept))
if sys.argv[1] == "persistent":
    assert len(list(loader)) == 16
loader.close()
say("done")
"""


@pytest.mark.parametrize("engine", ["process", "thread"])
@pytest.mark.parametrize("persistent", ["persistent", "not"])
def test_a_child_that_exits_changes_nothing(persistent: str, engine: str) -> None:
    with running(FORKS, persistent, engine, finalizes=True) as program:
        assert program.line() == "done"
        assert program.end() == 0
        assert program.errors() == ""


OWN_EPOCH = """
loader = Loader(Numbers(), 4, workers=2)
batches = iter(loader)
first = next(batches)
child = os.fork()
if child == 0:
    assert len(list(loader)) == 16  # with workers and memory of its own
    assert (first == np.arange(4)[:, None]).all()
    os._exit(0)
numbers = [int(batch[0, 0]) for batch in batches]
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert numbers == list(range(4, 64, 4)), numbers
assert (first == np.arange(4)[:, None]).all()
say("done")
"""


def test_a_child_may_iterate_over_the_same_loader() -> None:
    with running(OWN_EPOCH, finalizes=True) as program:
        assert program.line() == "done"
        assert program.end() == 0
        assert program.errors() == ""


FORKED_WITH_AN_ITERATOR = """
import gc
import warnings
loader = Loader(Numbers(), 4, workers=2)
batches = iter(loader)
next(batches)
child = os.fork()
if child == 0:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        del batches, loader
        gc.collect()
    say(str([str(warning.message) for warning in caught]))
    os._exit(0)
os.waitpid(child, 0)
assert len(list(batches)) == 15
loader.close()
"""


def test_a_child_gets_no_warning_about_what_it_was_forked_with() -> None:
    with running(FORKED_WITH_AN_ITERATOR) as program:
        assert program.line() == "[]"
        assert program.end() == 0
