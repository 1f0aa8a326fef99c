"""How batches are written into memory and read out of it."""

from __future__ import annotations

import gc
import itertools
import threading
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import feedline
from feedline.abc import memory
from feedline.datasets import CachedDataset
from feedline.errors import NotPicklable
from feedline.frameworks.numpy import NumpyFramework
from feedline.frameworks.torch import TorchFramework
from feedline.memory.codec import (
    ALIGNMENT,
    LARGE_BYTES,
    Bytes,
    Codec,
    Reader,
    SlotFull,
    SlotWriter,
    Views,
    overlapping,
    segment_reader,
)
from feedline.memory.sparse import HUGE_PAGES_FROM
from feedline.types import EngineName
from tests.memory.tasks import message, task_in
from tests.sampling import examples

# -- how to compare ---


def same(left: Any, right: Any) -> bool:
    """Return whether both are equal in value and in all nested types, arrays bit for bit."""
    if type(left) is not type(right):
        return False
    if isinstance(left, torch.Tensor):
        return same_tensor(left, right)
    if isinstance(left, np.ndarray):
        if left.dtype.newbyteorder("=") != right.dtype.newbyteorder("=") or left.shape != right.shape:
            return False  # NumPy's own pickling may change the byte order
        if left.dtype != right.dtype:
            left, right = (array.astype(array.dtype.newbyteorder("=")) for array in (left, right))
        return list(left.flat) == list(right.flat) if left.dtype.hasobject else left.tobytes() == right.tobytes()
    if isinstance(left, dict):
        return list(left) == list(right) and all(same(left[key], right[key]) for key in left)
    if isinstance(left, (list, tuple)):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, float):
        return np.float64(left).tobytes() == np.float64(right).tobytes()
    return bool(left == right)


def same_tensor(left: torch.Tensor, right: torch.Tensor) -> bool:
    names = ("dtype", "shape", "layout", "requires_grad")
    is_alike = all(getattr(left, name) == getattr(right, name) for name in names)
    return is_alike and (left.numel() == 0 or bits(left) == bits(right))


def bits(tensor: torch.Tensor) -> bytes:
    if tensor.layout is not torch.strided:
        tensor = tensor.to_dense()
    plain = tensor.detach().resolve_conj().resolve_neg().contiguous()
    return bytes(plain.as_strided((plain.numel(),), (1,)).view(torch.uint8).numpy())


class Slot:
    """Memory followed by guard bytes that must stay untouched."""

    guard_bytes = 256

    def __init__(self, size: int = 1 << 20) -> None:
        backing = np.full(size + self.guard_bytes + ALIGNMENT, 0xA5, np.uint8)
        start = -backing.__array_interface__["data"][0] % ALIGNMENT
        self.memory: Bytes = backing[start : start + size]
        self._guard = backing[start + size :]

    def writer(self) -> SlotWriter:
        return SlotWriter(self.memory)

    def untouched_behind(self) -> bool:
        return bool((self._guard == 0xA5).all())


def round_trip(codec: Codec, batch: Any, slot: Slot | None = None) -> Any:
    slot = slot or Slot()
    writer = slot.writer()
    header = codec.encode(batch, writer)
    assert slot.untouched_behind()
    assert len(header) <= 33 << 10, "headers are sent in small messages"
    return codec.decode(header, Views(slot.memory[: max(writer.used, 1)]))


TORCH = Codec(TorchFramework())
NUMPY = Codec(NumpyFramework())


# -- what can be in a batch ---

DTYPES = [
    *(torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8),
    *(torch.uint8, torch.uint16, torch.uint32, torch.uint64, torch.bool, torch.complex64, torch.complex128),
    *(torch.complex32, torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e8m0fnu),
]

shapes = st.lists(st.integers(0, 4), max_size=4).map(tuple)


@st.composite
def tensors(draw: st.DrawFn) -> torch.Tensor:
    """Tensors of every type, shape and memory layout."""
    dtype = draw(st.sampled_from(DTYPES))
    shape = draw(shapes)
    count = int(np.prod(shape, dtype=int))
    raw = np.random.default_rng(draw(st.integers(0, 99))).integers(0, 256, max(1, count * dtype.itemsize), np.uint8)
    if dtype is torch.bool:
        raw %= 2
    tensor = torch.from_numpy(raw.copy())[: count * dtype.itemsize].view(dtype).reshape(shape)
    form = draw(st.sampled_from(["plain", "transposed", "sliced", "stepped", "expanded", "flipped", "offset"]))
    if form == "transposed":
        return tensor.permute(draw(st.permutations(range(tensor.dim())))) if tensor.dim() else tensor
    if tensor.dim() == 0 or form == "plain":
        return tensor
    if form == "sliced":
        return tensor[: draw(st.integers(0, len(tensor)))]
    if form == "offset":
        return tensor[len(tensor) // 2 :]
    if form == "stepped":
        return tensor[..., ::2]
    if form == "expanded" and len(tensor):
        return tensor[:1].expand(3, *tensor.shape[1:])
    return tensor.t() if tensor.dim() == 2 else tensor


array_types = (
    hnp.scalar_dtypes()
    | hnp.unicode_string_dtypes(max_len=4)
    | hnp.byte_string_dtypes(max_len=4)
    | hnp.array_dtypes(hnp.scalar_dtypes(), max_size=3)
)


@st.composite
def arrays(draw: st.DrawFn) -> np.ndarray[Any, Any]:
    array: np.ndarray[Any, Any] = draw(hnp.arrays(array_types, hnp.array_shapes(min_dims=0, max_side=4, min_side=0)))
    form = draw(st.sampled_from(["plain", "fortran", "reversed", "transposed", "read-only"]))
    if form == "fortran":
        return np.asfortranarray(array)
    if form == "reversed" and array.ndim:
        return array[::-1]
    if form == "transposed":
        return array.T
    if form == "read-only":
        array.flags.writeable = False
    return array


scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20) | st.binary(max_size=200)


def batches(leaves: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.recursive(
        leaves | scalars,
        lambda inner: (
            st.lists(inner, max_size=4)
            | st.lists(inner, max_size=4).map(tuple)
            | st.dictionaries(st.text(max_size=5) | st.integers(), inner, max_size=4)
        ),
        max_leaves=8,
    )


@pytest.mark.filterwarnings("ignore:ComplexHalf")
@pytest.mark.parametrize("codec", [TORCH, NUMPY], ids=["torch", "numpy"])
@settings(max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data(), size=st.integers(0, 600) | st.just(1 << 20))
def test_any_batch_arrives_unchanged_or_raises_slot_full(codec: Codec, data: st.DataObject, size: int) -> None:
    batch = data.draw(batches(tensors() | arrays() if codec is TORCH else arrays()))
    slot = Slot(size)
    try:
        assert same(round_trip(codec, batch, slot), batch)
    except SlotFull:
        assert slot.untouched_behind()
        assert size < 1 << 20


# -- special batches ---


class Tagged(torch.Tensor):
    pass


SPECIAL: dict[str, Callable[[], torch.Tensor]] = {
    "gradient": lambda: torch.arange(4.0).requires_grad_(),
    "subclass": lambda: torch.arange(4.0).as_subclass(Tagged),
    "parameter": lambda: torch.nn.Parameter(torch.arange(3.0)),
    "sparse": lambda: torch.eye(4).to_sparse(),
    "sparse of integers": lambda: torch.tensor([[0, 3], [0, 0]]).to_sparse(),
    "uncoalesced": lambda: torch.sparse_coo_tensor(torch.tensor([[0, 0, 1]]), torch.tensor([1.0, 2.0, 3.0]), (3,)),
    "csr": lambda: torch.eye(4).to_sparse_csr(),
    "csc": lambda: torch.eye(4).to_sparse_csc(),
    "bsr": lambda: torch.eye(4).to_sparse_bsr((2, 2)),
    "conjugate": lambda: torch.arange(4).to(torch.complex64).mul(1j).conj(),
    "conjugate halves": lambda: torch.tensor([1 + 2j, 3 + 4j]).to(torch.complex32).conj(),
    "negative bit": lambda: torch.arange(4).to(torch.complex64).mul(1j).conj().imag,
    "channels last": lambda: torch.rand(2, 3, 4, 5).to(memory_format=torch.channels_last),
    "overlapping": lambda: torch.arange(6.0).as_strided((3, 3), (1, 1)),
    "four bits": lambda: torch.arange(6, dtype=torch.uint8).view(getattr(torch, "int4")),  # noqa: B009  torch's stubs lack it
    "no type": lambda: torch.arange(6, dtype=torch.uint8).view(torch.bits8),
    "nothing": lambda: torch.empty(0),
    "no rows": lambda: torch.empty(0, 3, 5),
    "one number": lambda: torch.tensor(4),
}


@pytest.mark.filterwarnings("ignore:Sparse", "ignore:ComplexHalf")
@pytest.mark.parametrize("name", SPECIAL)
def test_special_tensors_arrive_unchanged(name: str) -> None:
    tensor = SPECIAL[name]()
    assert same(round_trip(TORCH, tensor), tensor)
    assert same(round_trip(TORCH, {"deep": [tensor, "text"]})["deep"][0], tensor)


@pytest.mark.parametrize("form", [list, tuple, lambda parts: dict(zip("ab", parts, strict=True))])
def test_a_tensor_referenced_twice_stays_one_object(form: Any) -> None:
    tensor = torch.arange(10.0)
    arrived = round_trip(TORCH, form([tensor, tensor]))
    first, second = arrived.values() if isinstance(arrived, dict) else arrived
    first[0] = 77
    assert second[0] == 77


# -- memory ---


def test_decoded_arrays_are_writable() -> None:
    frozen = np.frombuffer(np.arange(4).tobytes(), np.int64)
    assert not frozen.flags.writeable
    arrived = round_trip(TORCH, [frozen, torch.arange(4), {"a": np.arange(3)}])
    arrived[0][0] = arrived[1][0] = arrived[2]["a"][0] = 9
    assert arrived[0].tolist() == [9, 1, 2, 3]


@pytest.mark.parametrize("rest", [(), ("text",)])
def test_a_tensor_that_is_already_in_the_slot_is_not_copied(rest: tuple[str, ...]) -> None:
    slot = Slot()
    writer = slot.writer()
    with task_in(writer):
        tensor = torch.from_numpy(memory.empty((10, 100), np.dtype(np.float32)))
    tensor.fill_(5)
    used = writer.used
    header = TORCH.encode([tensor, tensor[3:5], *rest], writer)
    assert writer.used == used
    arrived = TORCH.decode(header, Views(slot.memory))
    tensor.fill_(6)
    assert arrived[0].unique().tolist() == [6]
    assert arrived[1].shape == (2, 100)


class Watched(list[Any]):
    """A list with weak references."""


def test_a_codec_keeps_no_reference_to_batch_or_slot() -> None:
    slot = Slot()
    batch = Watched([np.zeros(10), torch.ones(3), "text"])
    writer = slot.writer()
    TORCH.encode(batch, writer)
    gone, freed = weakref.ref(batch), weakref.ref(writer.view)
    slot.memory = np.empty(0, np.uint8)
    del batch, writer
    gc.collect()
    assert gone() is None
    assert freed() is None


# -- headers ---


@pytest.mark.parametrize(
    "batch",
    [
        ["x" * 100_000],
        [torch.full((1,), number) for number in range(3_000)],
        {str(number): torch.full((1,), number) for number in range(3_000)},
        {"bytes": b"y" * 100_000, "array": np.arange(5), "tensor": torch.arange(5)},
    ],
)
def test_a_long_header_spills_into_the_slot(batch: Any) -> None:
    slot = Slot(4 << 20)
    writer = slot.writer()
    header = TORCH.encode(batch, writer)
    assert len(header) < 100
    assert same(TORCH.decode(header, Views(slot.memory[: writer.used])), batch)


class MadeOnTheFly:
    """Pickled as a temporary tensor, and names that make the header long."""

    def __init__(self, size: int, count: int) -> None:
        self.size, self.count = size, count

    def __reduce__(self) -> Any:
        return list, ((torch.full((self.size,), 7, dtype=torch.uint8), [f"n{number}" for number in range(self.count)]),)


def test_a_long_header_is_not_mistaken_for_a_freed_tensor_at_its_address() -> None:
    size, count = 100_000, 8000
    for _ in range(5):
        tensor, names = round_trip(TORCH, MadeOnTheFly(size, count), Slot(4 << 20))
        assert names[-1] == f"n{count - 1}"
        assert int(tensor.sum()) == 7 * size


def test_a_codec_works_again_after_a_failure() -> None:
    for bad, error in ((np.zeros(1000), SlotFull), (threading.Lock(), NotPicklable)):
        with pytest.raises(error):
            round_trip(TORCH, ["text", bad], Slot(64))
        assert same(round_trip(TORCH, ["text", np.arange(3)]), ["text", np.arange(3)])


def deep(levels: int) -> list[Any]:
    nested: list[Any] = []
    for _ in range(levels):
        nested = [nested]
    return nested


@pytest.mark.parametrize(("batch", "named"), [(lambda: 1, "a function"), (deep(100_000), "recursion")])
def test_the_error_about_unpicklable_batches_names_the_object_and_a_workaround(batch: Any, named: str) -> None:
    with pytest.raises(NotPicklable, match=r"(?s)training loop.*engine='thread'") as caught:
        round_trip(TORCH, batch)
    assert named in str(caught.value)
    assert caught.value.__cause__ is not None


# -- batches behind their headers ---


def packed(codec: Codec, batch: Any) -> tuple[bytes, int]:
    writer = message()
    header = codec.encode(batch, writer)
    return header + writer.contents(), writer.used


def forms(first: float) -> list[Any]:
    x, y = torch.full((4, 3), first), torch.arange(4) + int(first)
    plain = [x, [x, y], (x, y), {"x": x, "y": y}, [x, y.bfloat16(), torch.empty(0, 2)], x[:0]]
    return [*plain, [x, "text"], [x, x[1:]], "text"]


@pytest.mark.parametrize("form", range(len(forms(0))))
def test_batches_packed_behind_their_headers_arrive_unchanged(form: int) -> None:
    codec = Codec(TorchFramework())
    sent = [forms(number)[form] for number in range(6)]
    sent.insert(3, [torch.zeros(5, 2)])  # another layout in between
    got = [codec.decode_packed(*packed(codec, batch)) for batch in sent]
    assert all(map(same, got, sent)), "each has its own memory"


@pytest.mark.parametrize("form", range(len(forms(0))))
def test_only_batches_with_the_previous_layout_are_decoded_ahead(form: int) -> None:
    codec = Codec(TorchFramework())
    messages = [packed(codec, forms(number)[form]) for number in range(5)]
    assert codec.decode_packed(*messages[0], ahead=True) is None, "nothing is known yet"
    for sent in messages[:2]:
        codec.decode_packed(*sent)
    ahead = [codec.decode_packed(*sent, ahead=True) for sent in messages[2:]]
    assert codec.decode_packed(*packed(codec, [torch.zeros(5, 2)]), ahead=True) is None, "another layout"
    if messages[0][0][0] == 1:
        assert all(map(same, ahead, [forms(number)[form] for number in range(2, 5)]))
    else:
        assert ahead == [None] * 3, "a pickle may run user code, so not ahead of time"
    assert same(codec.decode_packed(*messages[4]), forms(4)[form])


# -- which arrays are views ---


def numbered(size: int = 4 * LARGE_BYTES) -> Bytes:
    return (np.arange(size) % 251).astype(np.uint8)


READERS = [Views, Reader, segment_reader]


@pytest.mark.parametrize("kind", READERS)
@pytest.mark.parametrize(("start", "size"), [(0, 1), (64, 1000), (4096, LARGE_BYTES), (0, 4 * LARGE_BYTES)])
def test_readers_return_the_bytes_at_a_place(kind: Callable[[Bytes], Reader], start: int, size: int) -> None:
    memory = numbered()
    part, offset = kind(memory).take(start, size)
    assert part[offset : offset + size].tolist() == memory[start : start + size].tolist()
    assert kind(memory).array(start, (size,), np.dtype(np.uint8)).tolist() == memory[start : start + size].tolist()
    assert bytes(kind(memory).peek(start, size)) == memory[start : start + size].tobytes()


@pytest.mark.parametrize(
    ("kind", "size", "is_view"),
    [
        (Views, 8, True),
        (Reader, 4 * LARGE_BYTES, False),
        (segment_reader, 8, False),
        (segment_reader, 3 * LARGE_BYTES, False),  # three quarters, so a view would waste a quarter
        (segment_reader, 4 * LARGE_BYTES - 8, True),
    ],
)
def test_large_parts_are_views_and_small_ones_copies(kind: Callable[[Bytes], Reader], size: int, is_view: bool) -> None:
    memory = numbered()
    reader = kind(memory)
    assert np.shares_memory(reader.take(0, size)[0], memory) == is_view
    assert np.shares_memory(reader.array(0, (size,), np.dtype(np.uint8)), memory) == is_view


@pytest.mark.parametrize("kind", [Reader, segment_reader])
def test_overlapping_arrays_share_one_copy(kind: Callable[[Bytes], Reader]) -> None:
    memory = numbered()
    reader = kind(memory)
    reader.join([(4096, 3000)])
    whole = reader.array(4096, (3000,), np.dtype(np.uint8))
    part = reader.array(5096, (5,), np.dtype(np.uint8))
    other = reader.array(0, (5,), np.dtype(np.uint8))
    assert part.tolist() == memory[5096 : 4096 + 1005].tolist()
    whole[:] = 7
    assert part.tolist() == [7] * 5
    assert other.tolist() == [0, 1, 2, 3, 4]
    assert not np.shares_memory(whole, memory)


Spans = st.lists(st.tuples(st.integers(0, 60), st.integers(1, 12)), max_size=12)


@given(Spans)
def test_ranges_are_joined_exactly_where_they_overlap(spans: list[tuple[int, int]]) -> None:
    count = np.zeros(80, int)
    for start, size in spans:
        count[start : start + size] += 1
    joined = overlapping(spans)
    for start, size in spans:
        mates = [span for span in spans if span[0] < start + size and start < span[0] + span[1]]
        inside = [span for span in joined if span[0] <= start and start + size <= span[0] + span[1]]
        assert len(inside) == (1 if len(mates) > 1 else 0)
    assert all(count[start : start + size].all() for start, size in joined)
    assert all(first[0] + first[1] <= second[0] for first, second in itertools.pairwise(joined))


def first_sample(batch: list[Any]) -> Any:
    return batch[0]


@pytest.mark.parametrize("engine", ["inline", "process"])
def test_numpy_s_strings_keep_their_trailing_zeros(engine: EngineName) -> None:
    samples = [{"data": np.bytes_(b"ab\0"), "text": [np.str_("ab\0")]}]
    cached = CachedDataset(samples, memory="1MB")
    assert cached[0] is not None
    for dataset in (samples, cached):
        loader = feedline.Loader(dataset, 1, workers=int(engine != "inline"), engine=engine, collate_fn=first_sample)
        with loader:
            (found,) = loader
        assert (type(found["data"]), bytes(found["data"])) == (np.bytes_, b"ab\0")
        assert (type(found["text"][0]), "".join(found["text"][0])) == (np.str_, "ab\0")


def test_huge_pages_are_prepared_once_before_the_first_large_array() -> None:
    large, calls = HUGE_PAGES_FROM, list[int]()
    memory_of_slot = np.empty(3 * large, np.uint8)  # never written: no page of it is touched
    writer = SlotWriter(memory_of_slot, prepare=lambda: calls.append(writer.used))
    assert writer.allocate(100) is not None
    assert calls == []
    assert writer.allocate(large) is not None
    assert writer.allocate(large) is not None
    assert calls == [100]
    assert writer.allocate(large) is None, "it is full"
