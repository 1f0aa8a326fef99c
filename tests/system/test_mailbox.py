"""The queue of answers: nothing is lost, and a signal does not make its consumer wait forever."""

import signal
import threading
import time

from feedline.system.mailbox import Mailbox


def test_many_threads_lose_nothing() -> None:
    box: Mailbox[tuple[int, int]] = Mailbox()

    def put_all(who: int) -> None:
        for number in range(2000):
            box.put((who, number))

    threads = [threading.Thread(target=put_all, args=(who,)) for who in range(4)]
    for thread in threads:
        thread.start()
    got: list[tuple[int, int]] = []
    while len(got) < 8000:
        got += box.collect(30.0)
    for thread in threads:
        thread.join()
    for who in range(4):
        assert [number for owner, number in got if owner == who] == list(range(2000))


def test_a_signal_does_not_extend_the_wait() -> None:
    """The handler takes longer than the rest of the timeout; `SimpleQueue.get` then waits for the item."""
    box: Mailbox[str] = Mailbox()
    ended = threading.Event()

    def put_if_still_waiting() -> None:
        if not ended.wait(30):
            box.put("the timeout was ignored")

    before = signal.signal(signal.SIGALRM, lambda *_: time.sleep(0.2))
    thread = threading.Thread(target=put_if_still_waiting)
    thread.start()
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.01)
        assert box.collect(0.05) == []
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        ended.set()
        thread.join()


def test_an_interrupt_between_the_wait_and_the_items_loses_no_time() -> None:
    box: Mailbox[str] = Mailbox()
    box.put("there")
    box._has_new.acquire()  # as if a signal handler had raised right after this
    assert box.collect(None) == ["there"], "without waiting for another item"
    box.put("more")
    assert box.collect(None) == ["more"]
