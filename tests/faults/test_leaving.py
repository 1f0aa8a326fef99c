"""Programs that end in the middle of an epoch, in every possible way."""

from __future__ import annotations

import pytest

from tests.faults.programs import running

pytestmark = pytest.mark.sample(7)

BEGIN = """
loader = Loader(Numbers(), 4, workers=2, engine=sys.argv[1], persistent=sys.argv[2] == "persistent")
batches = iter(loader)
batch = next(batches)
say(*worker_pids(), os.getpid())
"""

WAYS = {
    "end of the program": ("", 0, ""),
    "sys.exit": ("sys.exit(7)", 7, ""),
    "exception": ("raise RuntimeError('loss is not a number')", 1, "loss is not a number"),
    "exception in the loop": ("for batch in batches: raise RuntimeError('in the loop')", 1, "in the loop"),
    "closed by hand": ("loader.close(); batches.close()", 0, ""),
    "dropped": ("del batches, loader; assert len(batch) == 4", 0, ""),
    "in a cycle": ("class Holder: pass\nholder = Holder(); holder.me = holder; holder.it = batches; del holder", 0, ""),
    "in an exit handler": ("import atexit; atexit.register(lambda: say(len(list(batches))))", 0, ""),
    "in a thread": (
        "import threading\nthread = threading.Thread(target=lambda: list(batches)); thread.start()",
        0,
        "",
    ),
    "at once": ("os._exit(4)", 4, ""),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("persistent", ["persistent", "not"])
def test_no_process_is_left_and_nothing_is_printed(way: str, persistent: str) -> None:
    leave, code, message = WAYS[way]
    with running(BEGIN + leave, "process", persistent, finalizes=True) as program:
        program.watch(program.line())
        assert program.end() == code, program.errors()
        assert program.watched_are_gone()
        errors = program.errors()
    if message:
        assert message in errors
        assert errors.count("Traceback (most recent call last)") == 1, errors
    else:
        assert errors == ""


@pytest.mark.parametrize("way", WAYS)
def test_threads_do_not_keep_a_program_alive(way: str) -> None:
    leave, code, message = WAYS[way]
    with running(BEGIN + leave, "thread", "persistent", finalizes=True) as program:
        program.watch(program.line())
        assert program.end() == code, program.errors()
        errors = program.errors()
    assert message in errors
    assert errors.count("Traceback (most recent call last)") == bool(message), errors


STUCK_THREADS = """
import threading
class Stuck(Numbers):
    def __getitem__(self, index):
        if index >= 4:
            threading.Event().wait()
        return super().__getitem__(index)
batches = iter(Loader(Stuck(), 4, workers=2, engine="thread"))
next(batches)
"""


@pytest.mark.slow
def test_stuck_threads_do_not_keep_a_program_alive() -> None:
    with running(STUCK_THREADS, finalizes=True) as program:
        assert program.end() == 0
        assert program.errors() == ""
