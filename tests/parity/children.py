"""Runs code in a forked process that answers with plain data."""

import multiprocessing
from collections.abc import Callable
from multiprocessing.connection import Connection

FORK = multiprocessing.get_context("fork")


def in_a_child(work: Callable[[], object], *, daemon: bool = False) -> object:
    """Run `work` in a forked process and return what it returned, or its exception as text."""
    receiver, sender = FORK.Pipe(duplex=False)

    def run(sender: Connection) -> None:
        try:
            sender.send(work())
        except BaseException as error:
            sender.send(f"{type(error).__name__}: {error}")

    with receiver, sender:
        child = FORK.Process(target=run, args=(sender,), daemon=daemon)
        child.start()
        assert receiver.poll(100), "the child never answered"
        result: object = receiver.recv()
        child.join()
        assert child.exitcode == 0
        return result
