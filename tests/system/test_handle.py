"""Handles are opened when first used, once per process or thread, and never shared between processes."""

from __future__ import annotations

import os
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from feedline.system.handle import Handle
from tests import program_server
from tests.parity.children import in_a_child


class Opened:
    """Records which process and thread opened it, and whether it was closed."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.thread = threading.get_ident()
        self.closed = 0

    def close(self) -> None:
        self.closed += 1


def test_nothing_is_opened_before_it_is_used() -> None:
    handle = Handle(Opened, Opened.close)
    states = [bool(handle._opened)]
    opened = handle.get()
    states.append(bool(handle._opened))
    assert handle.get() is opened
    handle.close()
    handle.close()
    assert opened.closed == 1
    assert [*states, bool(handle._opened)] == [False, True, False]
    assert handle.get() is not opened


def test_a_pickled_handle_opens_its_own() -> None:
    handle = Handle(Opened, Opened.close)
    opened = handle.get()
    other = pickle.loads(pickle.dumps(handle))
    assert not other._opened
    assert other.get() is not opened
    other.close()
    assert opened.closed == 0


@pytest.mark.parametrize("closes", [False, True])
def test_a_forked_process_opens_its_own_and_leaves_the_inherited_one_alone(closes: bool) -> None:
    handle = Handle(Opened, Opened.close, close_inherited=closes)
    opened = handle.get()

    def act() -> int:
        own = handle.get()
        assert own.pid == os.getpid()
        assert opened.closed == int(closes)
        handle.close()
        return own.closed

    assert in_a_child(act) == 1
    assert handle.get() is opened
    assert opened.closed == 0


def test_an_open_object_is_closed_with_its_handle() -> None:
    handle = Handle(Opened, Opened.close)
    opened = handle.get()
    del handle
    assert opened.closed == 1


def test_threads_share_a_handle_or_have_their_own() -> None:
    shared, apart = Handle(Opened, Opened.close), Handle(Opened, Opened.close, per_thread=True)
    barrier = threading.Barrier(4)

    def act(_: int) -> tuple[Opened, Opened]:
        barrier.wait(100)
        return shared.get(), apart.get()

    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(act, range(4)))
    assert len({id(one) for one, _ in found}) == 1
    assert len({id(own) for _, own in found}) == 4
    apart.close()
    assert all(own.closed == 1 for _, own in found)


def test_objects_of_ended_threads_are_closed_when_another_thread_opens() -> None:
    handle = Handle(Opened, Opened.close, per_thread=True)
    left: list[Opened] = []
    thread = threading.Thread(target=lambda: left.append(handle.get()))
    thread.start()
    thread.join()
    mine = handle.get()
    assert mine.thread == threading.get_ident()
    if left[0].thread != mine.thread:  # the id of an ended thread may be reused
        assert left[0].closed == 1


@pytest.mark.slow
def test_nothing_is_printed_at_the_end_of_a_program(tmp_path: Path) -> None:
    """At interpreter shutdown, modules lose their contents before datasets in them are deleted."""
    pytest.importorskip("torch")
    pytest.importorskip("PIL")
    program = """
import numpy as np
from pathlib import Path
from PIL import Image
import feedline
from feedline.datasets import TarDataset
Path("photos/a").mkdir(parents=True)
for number in range(20):
    Image.fromarray(np.zeros((80, 80, 3), np.uint8)).save(f"photos/a/{number}.jpg")
feedline.pack("photos", "small.tar", resize=64)
dataset = TarDataset("small.tar", fields=("jpg", "cls"))
print(len(next(iter(feedline.DataLoader(dataset, batch_size=8, shuffle=True, seed=0, collate_fn=list)))))
"""
    done = program_server.run(program, cwd=tmp_path, finalizes=True)
    assert (done.stdout, done.stderr, done.returncode) == ("8\n", "", 0)
