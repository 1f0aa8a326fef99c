"""Arguments of the loader for NumPy that cannot work are refused when it is built."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from feedline import Loader
from feedline.errors import BadOption
from feedline.policies import InOrder

X = np.zeros((100, 3))
Y = np.arange(100)


class Stream:
    """An iterable dataset."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(3))


def test_options_are_keywords() -> None:
    with pytest.raises(TypeError, match="positional"):
        Loader(range(3), 1, True)  # type: ignore[call-arg]


class NoLength:
    def __getitem__(self, index: int) -> int:
        return index


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"dataset": 5}, "neither __getitem__ nor __iter__"),
        ({"dataset": None}, "neither __getitem__ nor __iter__"),
        ({"dataset": NoLength()}, "without __len__.*sampler="),
        ({"dataset": (index for index in range(3))}, "dataset= is a generator, which can be iterated over only once"),
        ({"dataset": map(abs, [1])}, "dataset= is a map"),
        ({"dataset": (X, Y[:5])}, "array 0 has 100 and array 1 has 5"),
        ({"batch_size": 0}, "batch_size=0 is less than 1"),
        ({"batch_size": 2.5}, "batch_size=2.5 is not an integer or None"),
        ({"batch_size": True}, "batch_size=True is not an integer"),
        ({"shuffle": 1}, "shuffle=1 is not True or False"),
        ({"shuffle": True, "sampler": [1]}, "shuffle=True and sampler="),
        ({"sampler": 5}, "sampler=5 cannot be iterated"),
        ({"sampler": iter([1])}, "sampler= is a list_iterator.*only once"),
        ({"batch_sampler": "ab"}, "batch_sampler='ab'"),
        ({"batch_sampler": [[1]], "batch_size": 2}, "batch_sampler= and batch_size="),
        ({"batch_sampler": [[1]], "batch_size": None}, "batch_sampler= and batch_size="),
        ({"batch_sampler": [[1]], "shuffle": True}, "batch_sampler= and shuffle="),
        ({"batch_sampler": [[1]], "sampler": [1]}, "batch_sampler= and sampler="),
        ({"batch_sampler": [[1]], "drop_last": True}, "batch_sampler= and drop_last="),
        ({"batch_size": None, "drop_last": True}, "drop_last=True needs batches"),
        ({"dataset": Stream(), "shuffle": True}, "shuffle= was given, but the dataset has no __getitem__"),
        ({"dataset": Stream(), "sampler": [1]}, "sampler= was given"),
        ({"dataset": Stream(), "batch_sampler": [[1]]}, "batch_sampler= was given"),
        ({"dataset": Stream(), "workers": 1, "scheduler": InOrder()}, "scheduler= has nothing to decide"),
        ({"drop_last": None}, "drop_last=None"),
        ({"collate": 5}, "collate=5 is not a function"),
        ({"workers": -1}, "workers=-1 is less than 0"),
        ({"workers": "2"}, "workers='2' is not an integer"),
        ({"engine": "ray"}, "engine='ray' is not one of"),
        ({"engine": "inline", "workers": 2}, "engine='inline'.*2 workers"),
        ({"engine": "thread"}, "needs at least one worker"),
        ({"prefetch": 0}, "prefetch=0 is less than 1"),
        ({"in_order": "no"}, "in_order='no'"),
        ({"timeout_s": -1}, "timeout_s=-1"),
        ({"timeout_s": float("nan")}, "timeout_s=nan"),
        ({"timeout_s": "1"}, "timeout_s='1'"),
        ({"seed": -1}, "seed=-1"),
        ({"seed": "abc"}, "seed='abc'"),
        ({"persistent": True}, "persistent=True keeps workers.*workers=0"),
        ({"start_method": "thread", "workers": 1}, "start_method='thread' is not one of 'fork'"),
        ({"start_method": "spawn"}, "workers=0"),
        ({"start_method": "spawn", "workers": 1, "engine": "thread"}, "engine='thread'"),
        ({"worker_init": "seed"}, "worker_init='seed' is not a function"),
        ({"scheduler": "fifo"}, "is not a feedline.abc.Scheduler"),
        ({"memory_budget": -1}, "memory_budget=-1"),
        ({"memory_budget": "1GB"}, "memory_budget='1GB' is not an integer"),
    ],
)
def test_arguments_that_cannot_work(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(BadOption, match=message):
        Loader(**{"dataset": range(10), **arguments})


@pytest.mark.parametrize("epoch", [-1, "1", None])
def test_an_epoch_that_is_no_number(epoch: Any) -> None:
    with pytest.raises(BadOption, match="epoch="):
        Loader(range(3)).set_epoch(epoch)
