"""Forking workers while other threads of the trainer are busy does not deadlock.

A fork copies one thread and every lock. A worker that takes a lock held by another thread would wait forever, and a
library that ends its threads before a fork may never answer those that wait for them. Each program here starts loaders
one after the other while its other threads run; both the workers and these threads must end.
"""

from __future__ import annotations

import pytest

from tests.faults.programs import running

START = """
import threading, warnings
warnings.simplefilter("error", feedline.errors.FeedlineWarning)  # a worker that hangs is not to be replaced in silence

ended = threading.Event()

class Busy(threading.Thread):
    '''A thread of the trainer that does the same again and again.'''
    def __init__(self, work):
        super().__init__(daemon=True)
        self.work = work
        self.rounds = 0
        self.first = threading.Event()
        self.start()
        assert self.first.wait(100)
    def run(self):
        while not ended.is_set():
            self.work()
            self.rounds += 1
            self.first.set()

class Samples:
    '''Sample i is i; `make` is what making it involves.'''
    def __init__(self, make):
        self.make = make
    def __len__(self):
        return 4
    def __getitem__(self, index):
        self.make()
        return index

def start_loaders(dataset, busy, **options):
    for number in range(int(sys.argv[1])):
        if "torch" in sys.modules:
            loader = feedline.DataLoader(dataset, 1, num_workers=2, timeout=100, sampler=range(4), **options)
        else:
            loader = Loader(dataset, 1, workers=2, timeout_s=100, sampler=range(4), **options)
        assert [batch.item() for batch in loader] == [0, 1, 2, 3]
        say(number, sum(thread.rounds for thread in busy))
    ended.set()
    for thread in busy:
        thread.join(100)
    say("stuck" if any(thread.is_alive() for thread in busy) else "done")
"""


FEWER_OPENCV_THREADS = """
import cv2
cv2.setNumThreads(4)
image = np.zeros((512, 512, 3), np.uint8)
cv2.GaussianBlur(image, (11, 11), 3)  # makes OpenCV's threads

def blur():
    cv2.GaussianBlur(image, (11, 11), 3)

start_loaders(Samples(blur), [], worker_init=lambda number: cv2.setNumThreads(1))
assert cv2.getNumThreads() == 4
"""


GENERATORS = """
import torch

def draw():
    torch.rand(200_000)
    np.random.rand(200_000)

start_loaders(Samples(draw), [Busy(lambda: torch.rand(200_000)), Busy(lambda: np.random.rand(200_000))])
"""


COMMON_LOCK = """
class Locked(Samples):
    def __init__(self):
        self.lock, self.again = threading.Lock(), threading.RLock()
    def __getitem__(self, index):
        with self.lock, self.again:
            time.sleep(0.001)  # the lock is what it waits with
            return index

dataset = Locked()

def epoch():
    for batch in Loader(dataset, 1, workers=2, engine="thread"):
        pass

start_loaders(dataset, [Busy(epoch)])
"""

# Without precautions, nearly every start of these hangs.
PROGRAMS = {
    "fewer threads of OpenCV": (FEWER_OPENCV_THREADS, 3),
    "generators": (GENERATORS, 4),
    "common lock": (COMMON_LOCK, 4),
}


def check(text: str, starts: int) -> None:
    if "cv2" in text:
        pytest.importorskip("cv2")
    with running(START + text, starts, afresh=True) as program:
        for number in range(starts):
            assert program.line().split()[0] == str(number), program.errors()
        assert program.line() == "done"
        assert program.end() == 0, program.errors()
        assert program.errors() == ""


@pytest.mark.slow
@pytest.mark.parametrize("name", PROGRAMS)
def test_loaders_start_while_other_threads_are_busy(name: str) -> None:
    check(*PROGRAMS[name])


CONVOLUTION = """
import torch
torch.set_num_threads(2)
from feedline import DataLoader

weight = torch.rand(8, 3, 3, 3)

class Convolved:
    def __len__(self):
        return 8
    def __getitem__(self, index):
        image = torch.rand(1, 3, 128, 128)
        return torch.nn.functional.conv2d(image, weight)[0, :, 0, 0], torch.get_num_threads()

class Threads:
    def __call__(self, number):
        torch.set_num_threads(2)

with torch.no_grad():
    torch.nn.functional.conv2d(torch.rand(4, 3, 128, 128), weight)  # makes torch's threads
    torch.rand(512, 512) @ torch.rand(512, 512)
    batches = list(DataLoader(Convolved(), 2, num_workers=2, worker_init_fn=Threads()))
    assert [batch[1].tolist() for batch in batches] == [[2, 2]] * 4
    torch.nn.functional.conv2d(torch.rand(4, 3, 128, 128), weight)  # and they are back
    assert torch.get_num_threads() == 2
say("done")
"""


@pytest.mark.slow  # torch's own loader hangs there
def test_workers_may_compute_on_several_threads_too() -> None:
    with running(CONVOLUTION, afresh=True) as program:
        assert program.line() == "done"
        assert program.end() == 0


FORKED_TRAINER = """
import torch
torch.set_num_threads(2)
torch.rand(1 << 17).add(1)  # makes torch's threads, of which a child has none
child = os.fork()
if child == 0:
    os._exit(len(list(Loader(Numbers(), 4, workers=2))))
say(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_trainer_may_be_forked_from_a_process_that_computed_on_several_threads() -> None:
    with running(FORKED_TRAINER) as program:
        assert program.line() == "16"
        assert program.end() == 0
