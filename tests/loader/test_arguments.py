"""Arguments that cannot work are rejected when a loader is created."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from feedline import DataLoader, DataLoader2, Loader
from feedline.errors import BadOption, OptionWarning
from feedline.samplers import LengthBucketBatchSampler
from feedline.schedulers import InOrder

X = np.zeros((100, 3))
Y = np.arange(100)


class Stream:
    """An iterable dataset."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(3))


class NoLength:
    def __getitem__(self, index: int) -> int:
        return index


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"dataset": 5}, "neither __getitem__ nor __iter__"),
        ({"dataset": "out.lmdb"}, "dataset='out.lmdb' is a str, not a dataset.*feedline.datasets.*`feedline inspect"),
        ({"dataset": NoLength()}, "without __len__.*sampler="),
        ({"dataset": (index for index in range(3))}, "dataset= is a generator, which can be iterated over only once"),
        ({"dataset": (X, Y[:5])}, "array 0 has 100 and array 1 has 5"),
        ({"batch_size": 0}, "batch_size=0 is less than 1"),
        ({"batch_size": 2.5}, "batch_size=2.5 is not an integer or None"),
        ({"shuffle": True, "sampler": [1]}, "shuffle=True and sampler="),
        ({"sampler": 5}, "sampler=5 cannot be iterated"),
        ({"sampler": iter([1])}, "sampler= is a list_iterator.*only once"),
        ({"batch_sampler": "ab"}, "batch_sampler='ab'"),
        ({"batch_sampler": [[1]], "batch_size": 2}, "batch_sampler= and batch_size="),
        ({"batch_size": None, "drop_last": True}, "drop_last=True needs batches"),
        ({"dataset": Stream(), "shuffle": True}, "shuffle= was given, but the dataset has no __getitem__"),
        ({"dataset": Stream(), "sampler": [1]}, "sampler= was given"),
        ({"dataset": Stream(), "workers": 1, "scheduler": InOrder()}, "scheduler= cannot be used here"),
        ({"collate_fn": 5}, "collate_fn=5 is not a function"),
        ({"workers": -1}, "workers=-1 is less than 0"),
        ({"engine": "spark"}, "engine='spark' is not one of"),
        ({"engine": "inline", "workers": 2}, "engine='inline'.*2 workers"),
        ({"engine": "thread"}, "needs at least one worker"),
        ({"prefetch": 0}, "prefetch=0 is less than 1"),
        ({"in_order": "no"}, "in_order='no'"),
        ({"timeout_s": float("nan")}, "timeout_s=nan"),
        ({"seed": -1}, "seed=-1"),
        ({"persistent": True}, "persistent=True keeps workers.*workers=0"),
        ({"start_method": "thread", "workers": 1}, "start_method='thread' is not one of 'fork'"),
        ({"start_method": "spawn", "workers": 1, "engine": "thread"}, "engine='thread'"),
        ({"worker_init": "seed"}, "worker_init='seed' is not a function"),
        ({"scheduler": "fifo"}, "is not a feedline.abc.Scheduler"),
        ({"memory_budget": 10}, "memory_budget=10 is less than 1024.*'4GB'"),
        ({"memory_budget": "1 XB"}, "memory_budget='1 XB' is not a number of bytes"),
    ],
)
def test_rejects_arguments_that_cannot_work(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(BadOption, match=message):
        Loader(**{"dataset": range(10), **arguments})


def names_of(kind: Any) -> list[str]:
    return list(inspect.signature(kind).parameters)


TRANSLATED = {
    "workers": "num_workers",
    "prefetch": "prefetch_factor",
    "timeout_s": "timeout",
    "persistent": "persistent_workers",
    "start_method": "multiprocessing_context",
    "worker_init": "worker_init_fn",
}


@pytest.mark.parametrize("own", [name for name in names_of(Loader) if name not in names_of(DataLoader)])
def test_data_loader_suggests_torchs_names_for_those_of_loader(own: str) -> None:
    kinds: tuple[Any, ...] = (DataLoader, DataLoader2)
    for kind in kinds:
        with pytest.raises(TypeError, match=rf"argument '{own}'\. Did you mean {TRANSLATED[own]}=\?"):
            kind(range(3), **{own: 1})


@pytest.mark.parametrize("name", [name for name in names_of(DataLoader) if name not in names_of(Loader)])
def test_loader_suggests_its_own_names_for_those_of_torch(name: str) -> None:
    meant = {**{theirs: ours for ours, theirs in TRANSLATED.items()}, "generator": "seed"}.get(name)
    advice = "Only feedline.DataLoader, the loader for torch, has it" if meant is None else rf"Did you mean {meant}=\?"
    wrong: dict[str, Any] = {name: 1}
    with pytest.raises(TypeError, match=rf"argument '{name}'\. {advice}"):
        Loader(range(3), **wrong)


def test_a_subclass_may_have_its_own_arguments() -> None:
    class Mine(Loader):
        def __init__(self, dataset: Any, *, extra: int, **options: Any) -> None:
            super().__init__(dataset, **options)
            self.extra = extra

    assert Mine(range(3), extra=1, workers=0).extra == 1
    with pytest.raises(TypeError, match=r"Mine\(\).*'num_workers'\. Did you mean workers="):
        Mine(range(3), extra=1, num_workers=1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"dataset": "/data/train"}, "each of its 11 characters is a sample"),
        ({"shuffle": "no"}, "shuffle='no' is a string, not a bool: this loader shuffles"),
        ({"timeout": 5}, "timeout=5 has no effect without workers.*Give num_workers=1"),
        ({"timeout_s": 5}, "timeout_s=5 has no effect without workers.*Give workers=1"),
    ],
    ids=str,
)
def test_warns_about_arguments_that_are_probably_mistakes(arguments: dict[str, Any], message: str) -> None:
    kind: Any = Loader if "timeout_s" in arguments else DataLoader
    with pytest.warns(OptionWarning, match=message) as warned:
        loader = kind(**{"dataset": range(10), **arguments})
    assert warned[0].filename == __file__
    assert len(list(loader)) == len(loader.dataset)


@pytest.mark.parametrize("kind", [Loader, DataLoader])
def test_rejects_a_batch_sampler_as_sampler(kind: Any) -> None:
    batches = LengthBucketBatchSampler([1, 2, 3, 4], 2)
    with pytest.raises(BadOption, match="Pass it as batch_sampler="):
        kind(list(range(4)), 2, sampler=batches)
    assert len(list(kind(list(range(4)), batch_sampler=batches))) == 2
