"""Ctrl-C reaches the trainer and all its workers at once: there is one traceback, and all processes end."""

from __future__ import annotations

import os
import signal

import pytest

from tests.faults.programs import Program, running

pytestmark = pytest.mark.sample(7)

LOOP = """
batches = iter(Loader(Numbers(1_000_000), 4, workers=2, engine=sys.argv[1]))
next(batches)
say(*worker_pids(), os.getpid())
for batch in batches:
    pass
"""


IN_THE_STEP = """
batches = iter(Loader(Numbers(), 4, workers=2, engine=sys.argv[1], persistent=True))
for batch in batches:
    say(*worker_pids(), os.getpid())
    hear()
"""

OWN_HANDLER = """
received = []
handler = signal.SIG_IGN if sys.argv[2] == "ignored" else lambda number, frame: received.append(number)
signal.signal(signal.SIGINT, handler)
loader = Loader(list(np.arange(64)), 4, workers=2, engine=sys.argv[1], start_method=sys.argv[3] or None)
for epoch in range(2):
    for number, batch in enumerate(loader):
        if number == 4:
            say("in the loop")
            hear()
    assert number == 15 and signal.getsignal(signal.SIGINT) is handler
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, [])
say(len(received))
"""


def interrupt(program: Program) -> None:
    os.killpg(program.pid, signal.SIGINT)


def check(program: Program) -> None:
    assert program.end() == -signal.SIGINT, "ended by the interrupt, as usual in Python"
    assert program.watched_are_gone()
    errors = program.errors()
    assert errors.count("Traceback (most recent call last)") == 1, errors
    assert errors.rstrip().endswith("KeyboardInterrupt"), errors


@pytest.mark.parametrize("engine", ["process", "thread"])
@pytest.mark.parametrize("text", [LOOP, IN_THE_STEP], ids=["in the loop", "in the step"])
def test_ctrl_c_prints_one_traceback_and_leaves_no_process(text: str, engine: str) -> None:
    with running(text, engine, finalizes=True) as program:
        program.watch(program.line())
        interrupt(program)
        check(program)


@pytest.mark.parametrize(("engine", "method"), [("process", "fork"), ("process", "forkserver"), ("thread", None)])
@pytest.mark.parametrize(("handling", "interrupts"), [("ignored", "0"), ("handled", "2")])
def test_a_program_that_ignores_or_handles_ctrl_c_keeps_doing_so(
    engine: str, method: str | None, handling: str, interrupts: str
) -> None:
    with running(OWN_HANDLER, engine, handling, method or "", finalizes=True) as program:
        for _ in range(2):
            assert program.line() == "in the loop"
            interrupt(program)
            program.go_on()
        assert program.line() == interrupts
        assert program.end() == 0
        assert not program.errors()
