"""A trainer that forks while a loader is running."""

from __future__ import annotations

import pytest

from tests.faults.programs import running

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


@pytest.mark.parametrize(
    ("engine", "persistent"), [("thread", "not"), pytest.param("process", "persistent", marks=pytest.mark.slow)]
)
def test_a_child_that_exits_changes_nothing(engine: str, persistent: str) -> None:
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


LARGE = """
from feedline.workers import abilities
if sys.argv[1] == "portable":
    abilities.can_share_arenas = lambda: False

class Large(Numbers):
    def __getitem__(self, index):
        return np.full(50_000, index)

def numbers_of(batches):
    return [int(batch[0, 0]) for batch in batches if (batch == np.arange(batch[0, 0], batch[0, 0] + 4)[:, None]).all()]
"""

CHANGED_BY_CHILDREN = (
    LARGE
    + """
kept = list(Loader(Large(16), 4, workers=1))  # of a loader that is gone
loader = Loader(Large(16), 4, workers=1)
batches = iter(loader)
kept += [next(batches), next(batches)]  # of one that is running
for _ in range(2):
    child = os.fork()
    if child == 0:
        if os.fork() == 0:
            kept[0] += 100
            os._exit(0)
        os.wait()
        assert numbers_of(kept) == [0, 4, 8, 12, 0, 4]
        for batch in kept:
            batch += 100
        assert numbers_of(kept) == [100, 104, 108, 112, 100, 104]
        sys.exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert numbers_of(kept) == [0, 4, 8, 12, 0, 4]
assert numbers_of(batches) == [8, 12]
say("done")
"""
)


@pytest.mark.parametrize("engine", ["process", pytest.param("portable", marks=pytest.mark.slow)])
def test_what_a_child_writes_into_batches_stays_its_own(engine: str) -> None:
    with running(CHANGED_BY_CHILDREN, engine, finalizes=True) as program:
        assert program.line() == "done"
        assert program.end() == 0
        assert program.errors() == ""


CHILD_OF_A_WORKER = (
    LARGE
    + """
delivered, allow = os.pipe()
seen, tell = os.pipe()

def saved_in_background(samples):
    batch = feedline.collate.default(samples)
    if batch[0, 0] == 4 and os.fork() == 0:
        os.read(delivered, 1)  # the training loop has received every batch
        os.write(tell, repr(numbers_of([batch])).encode())
        batch[:] = -1
        again = feedline.collate.default(samples)
        again[:] = -1
        os.write(tell, b" done")
        os._exit(0)
    return batch

loader = Loader(Large(256), 4, workers=1, collate_fn=saved_in_background, start_method="fork")
kept = []
for place, batch in enumerate(loader):
    if place >= 2 or sys.argv[2] == "kept":
        kept.append(batch)
    del batch
os.write(allow, b".")
os.close(tell)
text = b""
while not text.endswith(b"done"):
    text += os.read(seen, 100)
assert text == b"[4] done", text
first = 0 if sys.argv[2] == "kept" else 8
assert numbers_of(kept) == list(range(first, 256, 4)), [int(batch[0, 0]) for batch in kept]
say("done")
"""
)


@pytest.mark.slow
@pytest.mark.parametrize(("engine", "first"), [("process", "dropped"), ("process", "kept"), ("portable", "kept")])
def test_a_child_of_a_worker_has_its_own_copy_of_the_unfinished_batch(engine: str, first: str) -> None:
    with running(CHILD_OF_A_WORKER, engine, first, finalizes=True) as program:
        assert program.line() == "done", program.errors()
        assert program.end() == 0
        assert program.errors() == ""
