"""The constructor: which arguments are accepted or rejected, with which message, and what can be read back."""

import copy
import inspect
import multiprocessing
import os
import pickle
import typing
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.utils.data
from torch.utils.data import BatchSampler, SequentialSampler, TensorDataset, default_collate, default_convert

import feedline
from tests.parity import datasets
from tests.parity.sides import Parity, Side

pytestmark = pytest.mark.sample(13)

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
    "negative timeout": squares(timeout=-1),
    "slightly negative timeout": squares(timeout=-0.5),
    "negative timeout with workers": squares(num_workers=2, timeout=-3),
    "prefetch without workers": squares(prefetch_factor=2),
    "prefetch of zero without workers": squares(prefetch_factor=0),
    "negative prefetch": squares(num_workers=2, prefetch_factor=-1),
    "persistent without workers": squares(persistent_workers=True),
    "drop_last without batches": squares(batch_size=None, drop_last=True),
    "drop_last without batches, iterable": counting(batch_size=None, drop_last=True),
    "context without workers": squares(multiprocessing_context="fork"),
    "context object without workers": squares(multiprocessing_context=multiprocessing.get_context("spawn")),
    "unknown start method without workers": squares(multiprocessing_context="teleport"),
    "unknown start method": squares(num_workers=2, multiprocessing_context="teleport"),
    "empty start method": squares(num_workers=2, multiprocessing_context=""),
    "wrong context object": squares(num_workers=2, multiprocessing_context=3),
    "context class": squares(num_workers=2, multiprocessing_context=multiprocessing.Process),
    "the multiprocessing module": squares(num_workers=2, multiprocessing_context=multiprocessing),
    "sampler with shuffle": squares(sampler=[0, 1], shuffle=True),
    "sampler with shuffle and workers": squares(sampler=[0, 1], shuffle=True, num_workers=2),
    "batch sampler with batch size": squares(batch_sampler=[[0]], batch_size=4),
    "batch sampler without batch size": squares(batch_sampler=[[0]], batch_size=None),
    "batch sampler with shuffle": squares(batch_sampler=[[0]], shuffle=True),
    "batch sampler with sampler": squares(batch_sampler=[[0]], sampler=[0]),
    "batch sampler with drop_last": squares(batch_sampler=[[0]], drop_last=True),
    "iterable with shuffle": counting(shuffle=True),
    "iterable with odd shuffle": counting(shuffle="yes"),
    "iterable with sampler": counting(sampler=[0, 1]),
    "iterable with batch sampler": counting(batch_sampler=[[0, 1]]),
    "batch size zero": squares(batch_size=0),
    "negative batch size": squares(batch_size=-1),
    "fractional batch size": squares(batch_size=2.5),
    "boolean batch size": squares(batch_size=True),
    "batch size as text": squares(batch_size="4"),
    "drop_last is not a boolean": squares(drop_last="no"),
    "iterable, batch size zero": counting(batch_size=0),
    "iterable, drop_last is not a boolean": counting(drop_last=1),
    "shuffling an empty dataset": lambda: {"dataset": datasets.Squares(0), "shuffle": True},
    "shuffling a dataset without a length": lambda: {"dataset": datasets.Identity(), "shuffle": True},
    "workers as text": squares(num_workers="two"),
    "workers is None": squares(num_workers=None),
    "timeout as text": squares(timeout="1"),
    "unknown argument": squares(batch_sise=3),
}


@pytest.mark.parametrize("name", REJECTED)
def test_bad_arguments_are_rejected_with_torchs_type_and_message(plain_parity: Parity, name: str) -> None:
    def code(side: Side) -> object:
        return side.kind(**REJECTED[name]())

    if name == "unknown argument":
        # This message is Python's, with the name of the class.
        plain_parity.same_failure(code, "got an unexpected keyword argument 'batch_sise'")
    elif name in ("workers as text", "workers is None", "timeout as text"):
        # torch's type; its message is that of a failed comparison, which does not help.
        expected, actual = plain_parity.both(code)
        assert expected.failure is not None
        assert expected.failure.kind is TypeError
        assert actual.failure is not None
        assert issubclass(actual.failure.kind, (TypeError, ValueError)), actual.failure.report
    else:
        plain_parity.same_refusal(code)


@pytest.mark.parametrize("value", [2, 0])
def test_rejects_more_positional_arguments_than_torch_accepts(plain_parity: Parity, value: int) -> None:
    def code(side: Side) -> object:
        positional = [datasets.Squares(), 1, False, None, None, 0, None, False, False, 0, None, None, None, value]
        return side.kind(*positional)

    plain_parity.same_failure(code, "positional arguments")


def test_the_dataset_is_required(plain_parity: Parity) -> None:
    plain_parity.same_failure(lambda side: side.kind(), "missing 1 required positional argument: 'dataset'")


def test_a_prefetch_of_zero_with_workers_is_rejected_by_the_first_batch() -> None:
    with pytest.raises((AssertionError, ValueError), match="prefetch_factor"):
        list(feedline.DataLoader(datasets.Squares(), num_workers=1, prefetch_factor=0))


def test_all_of_torchs_positional_arguments_are_accepted(plain_parity: Parity) -> None:
    def code(side: Side) -> object:
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

    plain_parity.same(code)


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
    "batched": squares(batch_size=4),
    "shuffled": squares(batch_size=4, shuffle=True),
    "not shuffled": squares(shuffle=False),
    "drop_last": squares(batch_size=3, drop_last=True),
    "unbatched": squares(batch_size=None),
    "unbatched, shuffled": squares(batch_size=None, shuffle=True),
    "sampler": squares(sampler=[3, 1, 2], batch_size=2),
    "batch sampler": squares(batch_sampler=[[0, 1], [2]]),
    "torch's batch sampler": squares(batch_sampler=BatchSampler(SequentialSampler(range(5)), 2, False)),
    "workers": squares(num_workers=2),
    "workers and prefetch": squares(num_workers=2, prefetch_factor=5),
    "persistent workers": squares(num_workers=1, persistent_workers=True),
    "collate": squares(collate_fn=datasets.as_list),
    "falsy collate": squares(collate_fn=None, batch_size=None),
    "timeout": squares(num_workers=1, timeout=12.5),
    "zero timeout": squares(timeout=0.0),
    "worker_init_fn": squares(num_workers=1, worker_init_fn=datasets.init_nothing),
    "generator": lambda: squares(generator=torch.Generator().manual_seed(4), shuffle=True)(),
    "pin_memory": squares(pin_memory=True),
    "pin_memory_device": squares(pin_memory=True, pin_memory_device="cuda"),
    "pin_memory_device alone": squares(pin_memory_device="cuda:1"),
    "out of order": squares(num_workers=2, in_order=False),
    "out of order without workers": squares(in_order=False),
    "iterable": counting(),
    "iterable batched": counting(batch_size=3, drop_last=True),
    "iterable unbatched": counting(batch_size=None),
    "iterable, shuffle=False": counting(shuffle=False),
    "no length, no shuffling": lambda: {"dataset": datasets.Identity(), "batch_size": 2},
    "a list as dataset": lambda: {"dataset": [1, 2, 3]},
}


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_arguments_can_be_read_back(plain_parity: Parity, name: str) -> None:
    def code(side: Side) -> object:
        loader = side.kind(**CONFIGURATIONS[name]())
        return [(attribute, getattr(loader, attribute)) for attribute in READABLE]

    plain_parity.same(code)


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_arguments_are_kept_by_identity(name: str) -> None:
    given = CONFIGURATIONS[name]()
    loader: Any = feedline.DataLoader(**given)  # Any: attributes are read by name
    for attribute, value in given.items():
        if attribute in ("dataset", "sampler", "batch_sampler", "collate_fn", "worker_init_fn", "generator") and value:
            assert getattr(loader, attribute) is value


def test_the_default_collate_functions_are_torchs() -> None:
    assert feedline.DataLoader(datasets.Squares()).collate_fn is default_collate
    assert feedline.DataLoader(datasets.Squares(), batch_size=None).collate_fn is default_convert
    assert feedline.DataLoader(datasets.Counting(), batch_size=None).collate_fn is default_convert


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("attribute", FIXED)
def test_rejects_setting_a_fixed_attribute(plain_parity: Parity, attribute: str, workers: int) -> None:
    def code(side: Side) -> object:
        loader = side.kind(datasets.Squares(), num_workers=workers)
        setattr(loader, attribute, getattr(loader, attribute))
        return None

    plain_parity.same_refusal(code)


def test_the_error_names_the_users_subclass(plain_parity: Parity) -> None:
    def code(side: Side) -> object:
        loader = type("TrainLoader", (side.kind,), {})(datasets.Squares())
        loader.batch_size = 3
        return None

    assert "TrainLoader" in plain_parity.same_refusal(code).text


@pytest.mark.parametrize(
    ("attribute", "value"),
    [
        ("num_workers", 0),
        ("num_workers", 3),
        ("timeout", 3.0),
        ("pin_memory", True),
        ("prefetch_factor", 4),
        ("generator", None),
        ("collate_fn", datasets.as_list),
        ("worker_init_fn", datasets.init_nothing),
        ("in_order", False),
        ("my_own_note", "anything"),
    ],
)
def test_other_attributes_may_be_set(plain_parity: Parity, attribute: str, value: object) -> None:
    def code(side: Side) -> object:
        loader = side.kind(datasets.Squares(), num_workers=2)
        setattr(loader, attribute, value)
        return getattr(loader, attribute)

    plain_parity.same(code)


def test_a_new_collate_function_takes_effect_in_the_next_epoch(parity: Parity) -> None:
    def code(side: Side) -> object:
        loader = side.loader(datasets.Squares(5), batch_size=2)
        first = list(loader)
        loader.collate_fn = datasets.as_tuple
        return first, list(loader)

    parity.same(code)


def test_fewer_workers_take_effect_in_the_next_epoch(plain_parity: Parity) -> None:
    def code(side: Side) -> object:
        loader = side.kind(datasets.Whereabouts(6), batch_size=2, num_workers=2)
        first = list(loader)
        loader.num_workers = 0
        return first, list(loader)

    plain_parity.same(code)


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver", None])
def test_the_context_may_be_reassigned(plain_parity: Parity, method: str | None) -> None:
    def code(side: Side) -> object:
        loader = side.kind(datasets.Squares(), num_workers=1, multiprocessing_context="fork")
        loader.multiprocessing_context = method
        context = loader.multiprocessing_context
        return None if context is None else (type(context), context.get_start_method())

    plain_parity.same(code)


@pytest.mark.parametrize("context", ["teleport", 3, object])
def test_rejects_a_wrong_context_on_reassignment(plain_parity: Parity, context: object) -> None:
    def code(side: Side) -> object:
        loader = side.kind(datasets.Squares(), num_workers=1)
        loader.multiprocessing_context = context
        return None

    plain_parity.same_refusal(code)


def test_rejects_a_context_on_reassignment_without_workers(plain_parity: Parity) -> None:
    def code(side: Side) -> object:
        loader = side.kind(datasets.Squares())
        loader.multiprocessing_context = "fork"
        return None

    plain_parity.same_refusal(code)


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_a_context_object_is_kept(method: str) -> None:
    context = multiprocessing.get_context(method)
    loader = feedline.DataLoader(datasets.Squares(), num_workers=1, multiprocessing_context=context)
    assert loader.multiprocessing_context is context


def test_it_is_a_subclass_of_torchs_loader() -> None:
    loader = feedline.DataLoader(datasets.Squares())
    assert isinstance(loader, torch.utils.data.DataLoader)
    assert issubclass(feedline.DataLoader, torch.utils.data.DataLoader)
    assert feedline.DataLoader.__name__ == "DataLoader"


def test_data_loader2_uses_threads_by_default() -> None:
    loader = feedline.DataLoader2(datasets.ProcessIds(4), batch_size=None, num_workers=2, scheduler=None)
    assert isinstance(loader, feedline.DataLoader)
    parents = {tuple(sample) for sample in loader}
    ids, on_main_thread = zip(*parents, strict=True)
    assert set(ids) == {multiprocessing.current_process().pid}
    assert set(on_main_thread) == {False}


@pytest.mark.parametrize("workers", [0, 2])
def test_data_loader2_delivers_the_same_batches(workers: int) -> None:
    theirs = torch.utils.data.DataLoader(datasets.Squares(9), batch_size=2, num_workers=workers)
    ours = feedline.DataLoader2(datasets.Squares(9), batch_size=2, num_workers=workers)
    assert torch.equal(torch.cat(list(ours)), torch.cat(list(theirs)))
    assert len(ours) == len(theirs)


def test_the_class_is_generic() -> None:
    alias = feedline.DataLoader[torch.Tensor]
    assert typing.get_origin(alias) is feedline.DataLoader
    assert typing.get_args(alias)[0] is torch.Tensor
    loader = alias(datasets.Squares(), batch_size=2)
    assert type(loader) is feedline.DataLoader
    assert len(list(loader)) == 5


def test_a_users_subclass_works(parity: Parity) -> None:
    def code(side: Side) -> object:
        base: Any = side.kind

        class Repeated(base):  # type: ignore[misc]
            """Overrides what users usually do: the constructor, the length and the iteration."""

            def __init__(self, *args: Any, times: int, **options: Any) -> None:
                self.times = times
                super().__init__(*args, **options)

            def __iter__(self) -> Any:
                for _ in range(self.times):
                    yield from super().__iter__()

            def __len__(self) -> int:
                return int(self.times * super().__len__())

        loader = Repeated(datasets.Squares(5), batch_size=2, num_workers=side.workers, times=2, **side.options)
        return len(loader), list(loader), loader.batch_size

    parity.same(code)


# Frameworks rebuild a loader from its constructor's signature and its attributes.


def rebuilt_as_lightning_does(loader: Any, **changes: Any) -> Any:  # Any: works on any loader class
    """Rebuild the loader with changed arguments.

    The rules are those of Lightning: every parameter of the constructor that is also an attribute is passed on if it
    differs from its default; parameters that come from `**kwargs` are looked up in torch's signature.
    """
    attributes = {name: value for name, value in vars(loader).items() if not name.startswith("_")}
    attributes["multiprocessing_context"] = loader.multiprocessing_context
    parameters = dict(inspect.signature(loader.__init__).parameters)
    has_variable_keywords = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    if has_variable_keywords:
        parameters.update(inspect.signature(torch.utils.data.DataLoader.__init__).parameters)
        del parameters["self"]
    given = {
        name
        for name, parameter in parameters.items()
        if name in attributes and parameter.default is not attributes[name] and parameter.default != attributes[name]
    }
    given.add("dataset")
    arguments = {name: attributes[name] for name in given}
    if arguments.get("batch_size") is None and loader.batch_sampler is not None:
        arguments.pop("batch_size", None)
    missing = [
        name
        for name, parameter in parameters.items()
        if parameter.default is parameter.empty
        and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        and name not in arguments
    ]
    assert not missing, f"the loader cannot be rebuilt: {missing} are not attributes"
    arguments.update(changes)
    if isinstance(loader.dataset, torch.utils.data.IterableDataset):
        arguments.pop("sampler", None)
        arguments.pop("batch_sampler", None)
    if arguments.get("sampler") is not None:
        arguments.pop("batch_sampler", None)
        arguments.pop("shuffle", None)
    if arguments.get("batch_sampler") is not None:
        for name in ("batch_size", "sampler", "shuffle", "drop_last"):
            arguments.pop(name, None)
    return type(loader)(**arguments)


@pytest.mark.parametrize(
    "name",
    ["defaults", "batched", "drop_last", "sampler", "collate", "batch sampler", "iterable batched", "generator"],
)
def test_lightning_can_rebuild_it(plain_parity: Parity, name: str) -> None:
    def code(side: Side) -> object:
        loader = side.kind(**CONFIGURATIONS[name]())
        again = rebuilt_as_lightning_does(loader)
        return list(again), again.batch_size, again.drop_last, again.collate_fn

    plain_parity.same(code)


def test_lightning_can_insert_a_distributed_sampler(plain_parity: Parity) -> None:
    def code(side: Side) -> object:
        loader = side.kind(datasets.Squares(11), batch_size=2, shuffle=True, drop_last=True)
        sampler: Any = torch.utils.data.DistributedSampler(loader.dataset, num_replicas=2, rank=1, seed=5)
        again = rebuilt_as_lightning_does(loader, sampler=sampler)
        return list(again), again.sampler is sampler, len(again)

    plain_parity.same(code)


def test_rebuilding_keeps_the_engine() -> None:
    loader = feedline.DataLoader(datasets.ProcessIds(4), batch_size=None, num_workers=2, engine="thread")
    again = rebuilt_as_lightning_does(loader)
    assert {pid for pid, _ in again} == {multiprocessing.current_process().pid}


ACCELERATE_KEYWORDS = (
    "num_workers",
    "collate_fn",
    "pin_memory",
    "timeout",
    "worker_init_fn",
    "multiprocessing_context",
    "generator",
    "prefetch_factor",
    "persistent_workers",
    "pin_memory_device",
    "in_order",
)


@pytest.mark.parametrize("name", ["batched", "shuffled", "workers and prefetch", "collate", "drop_last"])
def test_accelerate_can_rebuild_it(plain_parity: Parity, name: str) -> None:
    """Accelerate reads the arguments from the loader and inserts its own batch sampler."""

    def code(side: Side) -> object:
        loader: Any = side.kind(**CONFIGURATIONS[name]())  # Any: attributes are read by name
        keywords = {keyword: getattr(loader, keyword) for keyword in ACCELERATE_KEYWORDS}
        again = type(loader)(loader.dataset, batch_sampler=loader.batch_sampler, **keywords)
        return list(again), len(again)

    plain_parity.same(code)


def test_the_class_may_be_changed_after_construction(plain_parity: Parity) -> None:
    """Accelerate gives its wrapper a class made of its own and the loader's."""

    def code(side: Side) -> object:
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

    plain_parity.same(code)


def test_a_patched_constructor_sees_the_users_arguments(plain_parity: Parity) -> None:
    """Lightning replaces `__init__` while the user creates loaders, to record the arguments."""

    def code(side: Side) -> object:
        noted: list[Any] = []
        original = side.kind.__init__

        def noting(self: Any, *args: Any, **options: Any) -> None:
            noted.append((args[1:], options))
            original(self, *args, **options)

        side.kind.__init__ = noting
        try:
            loader = side.kind(datasets.Squares(), 2, drop_last=True)
        finally:
            side.kind.__init__ = original
        return noted[0], list(loader)

    plain_parity.same(code)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("copy_it", [copy.copy, copy.deepcopy, lambda loader: pickle.loads(pickle.dumps(loader))])
def test_a_loader_can_be_copied_and_pickled(plain_parity: Parity, copy_it: Callable[[Any], Any], workers: int) -> None:
    def code(side: Side) -> object:
        loader = side.kind(datasets.Squares(5), batch_size=2, num_workers=workers)
        again = copy_it(loader)
        return type(again) is type(loader), list(again), list(loader), again.batch_size

    plain_parity.same(code)


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


def test_as_many_workers_as_cores_do_not_warn() -> None:
    workers = len(os.sched_getaffinity(0))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        feedline.DataLoader(datasets.Squares(), num_workers=workers)


@pytest.mark.skipif(torch.cuda.is_available(), reason="with an accelerator memory is pinned")
@pytest.mark.parametrize("device", ["", "cuda"])
def test_pinning_without_an_accelerator_warns_and_continues(parity: Parity, device: str) -> None:
    def code(side: Side) -> object:
        loader = side.loader(datasets.Pairs(5), batch_size=2, pin_memory=True, pin_memory_device=device)
        batches = list(loader)
        return batches, [batch[0].is_pinned() for batch in batches]

    parity.same(code)


@pytest.mark.skipif(torch.cuda.is_available(), reason="with an accelerator memory is pinned")
def test_a_batch_is_not_asked_to_pin_itself_without_an_accelerator(parity: Parity) -> None:
    def code(side: Side) -> object:
        loader = side.loader(datasets.Squares(5), batch_size=2, pin_memory=True, collate_fn=datasets.Pinnable)
        return list(loader)

    parity.same(code)


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_unpicklable_arguments_warn_and_fail(plain_parity: Parity, method: str) -> None:
    def code(side: Side) -> object:
        loader = side.kind(
            datasets.Squares(4),
            num_workers=1,
            multiprocessing_context=method,
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


def test_unpicklable_arguments_work_with_fork(process_parity: Parity) -> None:
    def code(side: Side) -> object:
        loader = side.loader(
            torch.utils.data.Subset(TensorDataset(torch.arange(6)), range(5)),
            batch_size=2,
            multiprocessing_context="fork",
            collate_fn=lambda samples: [float(sample[0]) for sample in samples],
            worker_init_fn=lambda worker_id: None,
        )
        return list(loader)

    process_parity.same(code)


def test_creating_and_dropping_a_loader_has_no_side_effects(plain_parity: Parity) -> None:
    """Creating it draws nothing from the global generators and starts nothing."""

    def code(side: Side) -> object:
        loader = side.kind(datasets.Squares(), shuffle=True, num_workers=2, persistent_workers=True)
        return len(loader), multiprocessing.active_children()

    plain_parity.same(code)
