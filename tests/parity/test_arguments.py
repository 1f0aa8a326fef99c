"""The constructor: which arguments are accepted or rejected, with which message, and what can be read back."""

import inspect
import multiprocessing
import os
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.utils.data
from torch.utils.data import BatchSampler, SequentialSampler

import feedline
from tests.parity import datasets
from tests.parity.sides import Parity, Side, same, same_as_it_is

Arguments = Callable[[], dict[str, Any]]  # Any: torch's arguments, wrong ones among them

FIXED = ("batch_size", "batch_sampler", "sampler", "drop_last", "dataset", "persistent_workers")

READABLE = (
    "dataset",
    "batch_size",
    "num_workers",
    "sampler",
    "batch_sampler",
    "drop_last",
    "collate_fn",
    "pin_memory",
    "pin_memory_device",
    "timeout",
    "worker_init_fn",
    "generator",
    "multiprocessing_context",
    "prefetch_factor",
    "persistent_workers",
    "in_order",
    # not public, but read by frameworks
    "_dataset_kind",
    "_auto_collation",
    "_index_sampler",
)


def squares(**options: Any) -> Arguments:
    return lambda: {"dataset": datasets.Squares(), **options}


def counting(**options: Any) -> Arguments:
    return lambda: {"dataset": datasets.Counting(), **options}


REJECTED: dict[str, Arguments] = {
    "negative workers": squares(num_workers=-1),
    "negative timeout with workers": squares(num_workers=2, timeout=-3),
    "prefetch without workers": squares(prefetch_factor=2),
    "negative prefetch": squares(num_workers=2, prefetch_factor=-1),
    "persistent without workers": squares(persistent_workers=True),
    "drop_last without batches": squares(batch_size=None, drop_last=True),
    "context without workers": squares(multiprocessing_context="fork"),
    "unknown start method": squares(num_workers=2, multiprocessing_context="teleport"),
    "wrong context object": squares(num_workers=2, multiprocessing_context=3),
    "sampler with shuffle": squares(sampler=[0, 1], shuffle=True),
    "batch sampler with batch size": squares(batch_sampler=[[0]], batch_size=4),
    "batch sampler with shuffle": squares(batch_sampler=[[0]], shuffle=True),
    "batch sampler with sampler": squares(batch_sampler=[[0]], sampler=[0]),
    "batch sampler with drop_last": squares(batch_sampler=[[0]], drop_last=True),
    "iterable with shuffle": counting(shuffle=True),
    "iterable with sampler": counting(sampler=[0, 1]),
    "iterable with batch sampler": counting(batch_sampler=[[0, 1]]),
    "batch size zero": squares(batch_size=0),
    "fractional batch size": squares(batch_size=2.5),
    "drop_last is not a boolean": squares(drop_last="no"),
    "shuffling an empty dataset": lambda: {"dataset": datasets.Squares(0), "shuffle": True},
    "shuffling a dataset without a length": lambda: {"dataset": datasets.Identity(), "shuffle": True},
    "unknown argument": squares(batch_sise=3),
}


@pytest.mark.parametrize("name", REJECTED)
def test_bad_arguments_are_rejected_with_torchs_type_and_message(plain_parity: Parity, name: str) -> None:
    def code(side: Side) -> object:
        return side.kind(**REJECTED[name]())

    if name == "unknown argument":
        # This message is Python's, with the name of the class.
        plain_parity.same_failure(code, "got an unexpected keyword argument 'batch_sise'")
    else:
        plain_parity.same_refusal(code)


@same_as_it_is
def test_all_of_torchs_positional_arguments_are_accepted(side: Side) -> object:
    generator = torch.Generator().manual_seed(3)
    loader = side.kind(
        datasets.Squares(),
        4,
        True,
        None,
        None,
        2,
        datasets.as_list,
        False,
        True,
        30.0,
        datasets.init_nothing,
        "fork",
        generator,
    )
    return [getattr(loader, name) for name in READABLE if name not in ("dataset", "multiprocessing_context")]


def test_the_signature_is_torchs_followed_by_keyword_only_options() -> None:
    theirs = list(inspect.signature(torch.utils.data.DataLoader.__init__).parameters.values())
    ours = list(inspect.signature(feedline.DataLoader.__init__).parameters.values())
    common = {parameter.name for parameter in theirs}
    own_defaults = {"persistent_workers": None}  # False, as torch's, unless there is a device
    assert [(p.name, p.kind, p.default) for p in ours if p.name in common] == [
        (p.name, p.kind, own_defaults.get(p.name, p.default)) for p in theirs
    ]
    extra = [parameter for parameter in ours if parameter.name not in common]
    assert {parameter.kind for parameter in extra} <= {inspect.Parameter.KEYWORD_ONLY}
    assert all(parameter.default is not inspect.Parameter.empty for parameter in extra)
    assert {"engine", "scheduler", "memory_budget"} <= {parameter.name for parameter in extra}


CONFIGURATIONS: dict[str, Arguments] = {
    "defaults": squares(),
    "shuffled": squares(batch_size=4, shuffle=True),
    "drop_last": squares(batch_size=3, drop_last=True),
    "unbatched": squares(batch_size=None),
    "sampler": squares(sampler=[3, 1, 2], batch_size=2),
    "batch sampler": squares(batch_sampler=[[0, 1], [2]]),
    "torch's batch sampler": squares(batch_sampler=BatchSampler(SequentialSampler(range(5)), 2, False)),
    "workers and prefetch": squares(num_workers=2, prefetch_factor=5),
    "persistent workers": squares(num_workers=1, persistent_workers=True),
    "collate": squares(collate_fn=datasets.as_list),
    "timeout": squares(num_workers=1, timeout=12.5),
    "generator": lambda: squares(generator=torch.Generator().manual_seed(4), shuffle=True)(),
    "pin_memory_device": squares(pin_memory=True, pin_memory_device="cuda"),
    "out of order": squares(num_workers=2, in_order=False),
    "iterable": counting(),
    "iterable, shuffle=False": counting(shuffle=False),
    "a list as dataset": lambda: {"dataset": [1, 2, 3]},
}


@pytest.mark.parametrize("name", CONFIGURATIONS)
@same_as_it_is
def test_arguments_can_be_read_back(side: Side, name: str) -> object:
    loader = side.kind(**CONFIGURATIONS[name]())
    return [(attribute, getattr(loader, attribute)) for attribute in READABLE]


@pytest.mark.parametrize("attribute", FIXED)
def test_rejects_setting_a_fixed_attribute(plain_parity: Parity, attribute: str) -> None:
    def code(side: Side) -> object:
        loader = side.kind(datasets.Squares())
        setattr(loader, attribute, getattr(loader, attribute))
        return None

    plain_parity.same_refusal(code)


def test_data_loader2_uses_threads_by_default() -> None:
    loader = feedline.DataLoader2(datasets.ProcessIds(4), batch_size=None, num_workers=2, scheduler=None)
    assert isinstance(loader, feedline.DataLoader)
    parents = {tuple(sample) for sample in loader}
    ids, on_main_thread = zip(*parents, strict=True)
    assert set(ids) == {multiprocessing.current_process().pid}
    assert set(on_main_thread) == {False}


# Frameworks rebuild a loader from its constructor's signature and its attributes.


@same_as_it_is
def test_the_class_may_be_changed_after_construction(side: Side) -> object:
    """Accelerate gives its wrapper a class made of its own and the loader's."""

    class Wrapper:
        def __init__(self, loader: Any) -> None:
            self.base = loader
            self.__class__ = type("Wrapper", (Wrapper, type(loader)), {})

        def __getattr__(self, name: str) -> Any:
            if name == "base":
                raise AttributeError
            return getattr(self.base, name)

        def __iter__(self) -> Any:
            return iter(self.base)

    wrapper: Any = Wrapper(side.kind(datasets.Squares(4), batch_size=2))
    return list(wrapper), isinstance(wrapper, torch.utils.data.DataLoader), wrapper.batch_size, wrapper.num_workers


# Warnings


def test_more_workers_than_cores_cause_torchs_warning() -> None:
    def warned(kind: type[torch.utils.data.DataLoader[Any]]) -> list[tuple[type[Warning], str]]:
        workers = len(os.sched_getaffinity(0)) + 1
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            kind(datasets.Squares(), num_workers=workers)
        return [(warning.category, str(warning.message)) for warning in caught]

    expected = warned(torch.utils.data.DataLoader)
    assert len(expected) == 1
    assert warned(feedline.DataLoader) == expected


@pytest.mark.skipif(torch.cuda.is_available(), reason="with an accelerator memory is pinned")
@same
def test_pinning_without_an_accelerator_warns_and_continues(side: Side) -> object:
    loader = side.loader(datasets.Pairs(5), batch_size=2, pin_memory=True, pin_memory_device="cuda")
    batches = list(loader)
    return batches, [batch[0].is_pinned() for batch in batches]


def test_unpicklable_arguments_warn_and_fail(plain_parity: Parity) -> None:
    def code(side: Side) -> object:
        loader = side.kind(
            datasets.Squares(4),
            num_workers=1,
            multiprocessing_context="spawn",
            collate_fn=lambda samples: samples,
        )
        return next(iter(loader))

    expected, actual = plain_parity.both(code)
    assert expected.failure is not None
    assert actual.failure is not None
    assert issubclass(actual.failure.kind, expected.failure.kind), actual.failure.report
    assert "lambda" in actual.failure.text
    assert actual.warnings == expected.warnings
    assert len(expected.warnings) == 1
