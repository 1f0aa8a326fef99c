"""Samples to batches: exactly like torch's default functions, with registered types and custom functions."""

import functools
import re
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset, default_collate
from torch.utils.data._utils import collate as torch_collate
from torch.utils.data._utils.collate import default_collate_fn_map

import feedline
from tests.parity import datasets
from tests.parity.samples import SAMPLES, UNCOLLATABLE, Make
from tests.parity.sides import Parity, Side, same, same_in_processes, same_inline, same_with_workers

pytestmark = [
    pytest.mark.workers(1),  # one worker is enough
]


class Custom:
    """A sample type that only a registration can collate."""

    def __init__(self, value: int) -> None:
        self.value = value


class CustomChild(Custom):
    pass


# These work inline but not with torch's workers, for reasons unrelated to collation.
INLINE_ONLY = ("buffers of bytes", "memory maps", "tensor subclasses", "conjugated tensors")


@same
def test_default_collation(side: Side) -> object:
    """Two batches of each kind of samples."""
    kinds = [make for name, make in SAMPLES.items() if not (side.workers and name in INLINE_ONLY)]
    dataset = datasets.Samples([sample for make in kinds for sample in make()])
    return list(side.loader(dataset, batch_size=2))


@same_inline
def test_default_conversion_without_batches(side: Side) -> object:
    dataset = datasets.Samples([sample for make in (*SAMPLES.values(), *OTHER_SAMPLES) for sample in make()])
    return list(side.loader(dataset, batch_size=None))


OTHER_SAMPLES: list[Make] = [
    lambda: [datasets.PlainObject(torch.tensor(i), "note") for i in range(4)],
    lambda: [None, Decimal(1), {1, 2}],
]


# What cannot be collated


@pytest.mark.parametrize("name", ["nothing", "tensors of different shapes", "a missing key"])
def test_the_error_for_samples_that_cannot_be_collated(parity: Parity, name: str) -> None:
    make, text = UNCOLLATABLE[name]
    parity.same_failure(lambda side: list(side.loader(datasets.Samples(make()), batch_size=2)), text)


@same_inline
def test_gradients_survive_collation_inline(side: Side) -> object:
    weights = torch.arange(4.0).requires_grad_()
    samples = [weights[i] * 2 for i in range(4)]
    for batch in side.loader(datasets.Samples(samples), batch_size=2):
        assert batch.requires_grad
        batch.sum().backward()
    return weights.grad


@same_with_workers
def test_leaf_tensors_with_gradients_can_be_sent_unbatched(side: Side) -> object:
    samples = [torch.full((2,), float(i)).requires_grad_() for i in range(3)]
    return list(side.loader(datasets.Samples(samples), batch_size=None))


def test_tensors_with_a_gradient_history_cannot_be_sent() -> None:
    """torch's loader hangs here: its worker cannot pickle the sample, and the consumer never learns of it."""
    loader = feedline.DataLoader(datasets.WithHistory(3), batch_size=None, num_workers=1, engine="process")
    with pytest.raises(Exception, match="requires_grad"):
        next(iter(loader))


# Registrations


@pytest.fixture
def registered() -> Iterator[None]:
    def collate_custom(batch: Any, *, collate_fn_map: Any = None) -> Any:
        return torch.tensor([sample.value for sample in batch]) + 1000

    default_collate_fn_map[Custom] = collate_custom
    yield
    del default_collate_fn_map[Custom]


@pytest.mark.usefixtures("registered")
@pytest.mark.parametrize("kind", [Custom, CustomChild])
@same
def test_registered_types_are_collated(side: Side, kind: type[Custom]) -> object:
    samples = [{"object": kind(i), "number": i} for i in range(4)]
    return list(side.loader(datasets.Samples(samples), batch_size=2))


@pytest.fixture
def tensors_replaced() -> Iterator[None]:
    def collate_tensor(batch: Any, *, collate_fn_map: Any = None) -> Any:
        return [torch.stack(list(batch)), "replaced"]

    before = default_collate_fn_map[torch.Tensor]
    default_collate_fn_map[torch.Tensor] = collate_tensor
    yield
    default_collate_fn_map[torch.Tensor] = before


@pytest.mark.usefixtures("tensors_replaced")
@pytest.mark.parametrize("dataset", [torch.utils.data.TensorDataset(torch.arange(4)), datasets.Records(4)])
def test_a_replaced_registration_applies_to_tensors(parity: Parity, dataset: Any) -> None:
    parity.same(lambda side: list(side.loader(dataset, batch_size=2)))


# Custom functions

FUNCTIONS = [
    datasets.as_list,
    datasets.to_boxes,
    datasets.to_array,
    datasets.to_sparse,
    datasets.to_channels_last,
    datasets.to_views,
    datasets.to_everything,
    datasets.Pinnable,
    default_collate,
]


def by_each(samples: list[torch.Tensor]) -> list[Any]:
    return [function(samples) for function in FUNCTIONS]


@same
def test_custom_collate_functions(side: Side) -> object:
    return list(side.loader(datasets.Squares(5), batch_size=2, collate_fn=by_each))


def with_attribute(stacked: torch.Tensor) -> torch.Tensor:
    stacked.note = "an attribute"  # type: ignore[attr-defined]
    return stacked


ODD_TENSORS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "conjugate": lambda stacked: torch.complex(stacked, -stacked).conj(),
    "negative": lambda stacked: torch.complex(stacked, -stacked).conj().imag,
    "subclass": lambda stacked: stacked.as_subclass(datasets.TaggedTensor),
    "parameter": torch.nn.Parameter,
    "frozen parameter": lambda stacked: torch.nn.Parameter(stacked, requires_grad=False),
    "leaf": lambda stacked: stacked.requires_grad_(),
    "nested": lambda stacked: torch.nested.nested_tensor(list(stacked)),
    "zero stride": lambda stacked: stacked[:1].expand(3, 2),
    "float8": lambda stacked: stacked.to(torch.float8_e5m2),
    "scalar": lambda stacked: stacked.sum(),
    "overlapping": lambda stacked: torch.arange(6.0).as_strided((3, 3), (1, 1)),
    "offset": lambda stacked: torch.arange(100.0)[40:44].reshape(2, 2),
    "large stride": lambda stacked: torch.arange(100.0)[::25],
    "attributes": with_attribute,
}


def odd_tensor(samples: list[torch.Tensor], kind: str, resolved: bool = False) -> torch.Tensor:
    made = ODD_TENSORS[kind](torch.stack(samples))
    return made.resolve_conj().resolve_neg() if resolved and kind in ("conjugate", "negative") else made


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(kind, marks=[] if kind in ("negative", "leaf", "overlapping", "attributes") else pytest.mark.slow)
        for kind in ODD_TENSORS
    ],
)
def test_odd_tensors_from_workers(process_parity: Parity, kind: str) -> None:
    """They arrive as from torch's workers or, which is better, as they left the dataset.

    torch's workers silently lose a tensor's attributes, its conjugation and its sign. Tensors that torch's workers
    cannot send at all are not required to work.
    """

    def code(side: Side) -> object:
        collate_fn = functools.partial(odd_tensor, kind=kind)
        return list(side.loader(datasets.Squares(4), batch_size=2, collate_fn=collate_fn))

    def original(side: Side) -> object:
        collate_fn = functools.partial(odd_tensor, kind=kind, resolved=True)
        return list(side.loader(datasets.Squares(4), batch_size=2, collate_fn=collate_fn, num_workers=0))

    expected, actual = process_parity.both(code)
    if expected.failure is not None:
        return
    assert actual.failure is None, actual.failure.report
    unsent, _ = process_parity.both(original)
    if kind in ("conjugate", "negative"):
        assert without_flags(actual.value) == without_flags(unsent.value)
    else:
        assert actual.value in (expected.value, unsent.value)


def without_flags(facts: object) -> str:
    return re.sub(r"conj=\w+ neg=\w+", "", repr(facts)).replace("-0j", "0j")


# Memory formats


def clip(size: int, channels: int = 3) -> torch.Tensor:
    return torch.zeros(4, channels, size, size).to(memory_format=torch.channels_last)


def frozen(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    array.flags.writeable = False
    return array


CLIPS: dict[str, Callable[[int], Any]] = {  # Any: datasets
    "tensors": lambda size: [(clip(size),)] * 10,
    "one channel": lambda size: [(clip(size, 1),)] * 10,
    "3d": lambda size: [(clip(size)[None].to(memory_format=torch.channels_last_3d),)] * 10,
    "read-only arrays": lambda size: [(frozen(clip(size).numpy()),)] * 10,
    "rows": lambda size: TensorDataset(torch.zeros(10, 4, size, size, 3).permute(0, 1, 4, 2, 3)),
    "mixed": lambda size: [(clip(size),), (clip(size).contiguous(),)] * 5,
}


@pytest.mark.filterwarnings("ignore:The given NumPy array is not writable")
@pytest.mark.parametrize(("engine", "size"), [("inline", 4), ("inline", 128), ("thread", 128)])
@pytest.mark.parametrize("kind", CLIPS)
def test_a_batch_within_the_process_has_torchs_memory_format_whatever_its_size(
    kind: str, size: int, engine: Any
) -> None:
    dataset = CLIPS[kind](size)
    loader = feedline.DataLoader(dataset, batch_size=4, num_workers=int(engine == "thread"), engine=engine)
    expected = [batch[0].stride() for batch in DataLoader(dataset, batch_size=4)]
    assert [batch[0].stride() for batch in loader] == expected


LAYOUTS: dict[str, Callable[[], Any]] = {  # Any: tensors and arrays
    "channels last": lambda: clip(8),
    "channels last, one channel": lambda: clip(8, 1),
    "channels last, one channel, large": lambda: clip(128, 1),
    "a transposed column": lambda: torch.zeros(5, 1).t(),
    "nothing, transposed": lambda: torch.zeros(3, 0, 5).transpose(0, 2),
    "complex halves, transposed": lambda: torch.zeros(4, 5).to(torch.complex32).t(),
    "exponents, transposed": lambda: torch.ones(4, 5).to(torch.float8_e8m0fnu).t(),
    "a repeated array": lambda: np.broadcast_to(np.arange(64.0).reshape(4, 16), (3, 4, 16)),
    "a read-only array in Fortran order": lambda: frozen(np.asfortranarray(np.ones((3, 4)))),
}


def laid_out(samples: list[int]) -> Any:
    return list(LAYOUTS.values())[samples[0]]()


@pytest.mark.filterwarnings("ignore:ComplexHalf")
@same_in_processes
def test_batches_from_worker_processes_keep_their_strides(side: Side) -> object:
    batches = list(side.loader(range(len(LAYOUTS)), batch_size=1, collate_fn=laid_out))
    return [batch.strides if isinstance(batch, np.ndarray) else batch.stride() for batch in batches]


@same
def test_batches_of_every_size(side: Side) -> object:
    """From a few bytes to several pages."""

    def several(samples: list[int]) -> Any:
        size = samples[0]
        base = torch.arange(size)
        return [base, base.float(), base.to(torch.uint8), "x" * size, b"y" * size, base.numpy()[::-1].copy()]

    batches = list(side.loader([1, 100, 5000, 200_000, 2], batch_size=1, collate_fn=several))
    return [
        [len(part) if isinstance(part, (str, bytes)) else (part.dtype, part.shape, float(part.sum())) for part in batch]
        for batch in batches
    ]


@pytest.mark.parametrize("name", ["default_collate", "collate", "default_convert"])
@same_inline
def test_a_function_that_the_program_puts_in_the_place_of_torchs(
    side: Side, monkeypatch: pytest.MonkeyPatch, name: str
) -> object:
    """Both before a loader is made and, if torch looks it up later, afterwards."""
    batch_size = None if name == "default_convert" else 2
    before = side.loader(datasets.Squares(4), batch_size=batch_size)
    monkeypatch.setattr(torch_collate, name, lambda batch, **_: torch.tensor(-1))
    after = side.loader(datasets.Squares(4), batch_size=batch_size)
    found = list(before), list(after), list(side.loader(TensorDataset(torch.arange(4)), batch_size=batch_size))
    monkeypatch.undo()
    return found
