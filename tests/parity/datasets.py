"""Datasets and functions that both loaders run; importable, so that spawned workers find them."""

import os
import random
import signal
import threading
from collections import namedtuple
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset, get_worker_info
from torch.utils.data._utils.worker import WorkerInfo

from tests.holding import pass_gate

Point = namedtuple("Point", ["x", "y"])  # the untyped kind is what most code has


@dataclass
class Boxes:
    """A user's own batch type."""

    boxes: Tensor
    names: list[str]


class PlainObject:
    """A batch type that is neither a container nor a dataclass."""

    def __init__(self, tensor: Tensor, note: str) -> None:
        self.tensor = tensor
        self.note = note


class Pinnable:
    """A batch type that knows how to pin itself."""

    def __init__(self, samples: Sequence[Tensor]) -> None:
        self.stacked = torch.stack(list(samples))
        self.pinned = False

    def pin_memory(self) -> "Pinnable":
        self.pinned = True
        return self


class TaggedDict(dict[str, Any]):
    """A mapping with an attribute, which collation must keep."""

    tag = "none"


class TaggedList(list[Any]):
    """A sequence with an attribute, which collation must keep."""

    tag = "none"


class TaggedTensor(torch.Tensor):
    """A tensor subclass."""


# Map-style datasets


class Squares(Dataset[Tensor]):
    """`n` samples, each the tensor (i, i squared)."""

    def __init__(self, n: int = 10) -> None:
        self.n = n

    def __getitem__(self, index: int) -> Tensor:
        if not -self.n <= index < self.n:
            raise IndexError(f"sample {index} of {self.n}")
        return torch.tensor([float(index), float(index) ** 2])

    def __len__(self) -> int:
        return self.n


class Pairs(Squares):
    """A 3x4 tensor and a Python int: the usual image and label."""

    def __getitem__(self, index: int) -> Any:
        return torch.full((3, 4), float(index)), index % 3


class Records(Squares):
    """A dict of everything: tensors, arrays, numbers, text, and a nested dict."""

    def __getitem__(self, index: int) -> Any:
        return {
            "image": torch.full((2, 2), index, dtype=torch.uint8),
            "array": np.arange(3, dtype=np.float32) + index,
            "label": index,
            "weight": index / 2,
            "name": f"sample-{index}",
            "meta": {"flags": [index % 2 == 0, index > 3], "point": Point(index, -index)},
        }


class Arrays(Squares):
    """NumPy samples."""

    def __getitem__(self, index: int) -> Any:
        return np.full((2, 3), index, dtype=np.int16)


class Words(Squares):
    def __getitem__(self, index: int) -> Any:
        return "word" * (index % 4) + str(index)


class Samples(Dataset[Any]):
    """The given samples."""

    def __init__(self, samples: Sequence[Any]) -> None:
        self.samples = samples

    def __getitem__(self, index: int) -> Any:
        return self.samples[index]

    def __len__(self) -> int:
        return len(self.samples)


class Identity(Dataset[Any]):
    """Returns the requested index, of any type. Has no length."""

    def __getitem__(self, index: Any) -> Any:
        return index


class Bulk(Squares):
    """Has `__getitems__`, and marks samples that came through it."""

    def __getitems__(self, indices: Sequence[int]) -> list[Tensor]:
        return [torch.tensor([index, 1000 + len(indices)]) for index in indices]


class BulkSwitchedOff(Squares):
    __getitems__ = None


# Iterable datasets


class Counting(IterableDataset[int]):
    """Yields 0 to n-1 in every worker: unsharded, as a naive user writes it."""

    def __init__(self, n: int = 7) -> None:
        self.n = n

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.n))


class SizedCounting(Counting):
    """Reports a length of its own choosing."""

    def __init__(self, n: int, reported: int) -> None:
        super().__init__(n)
        self.reported = reported

    def __len__(self) -> int:
        return self.reported

    def __repr__(self) -> str:
        return f"SizedCounting({self.n}, {self.reported})"


class Sharded(IterableDataset[Tensor]):
    """Splits 0 to n-1 over the workers, each taking every k-th."""

    def __init__(self, n: int = 11) -> None:
        self.n = n

    def __iter__(self) -> Iterator[Tensor]:
        info = get_worker_info()
        first, step = (info.id, info.num_workers) if info else (0, 1)
        for value in range(first, self.n, step):
            yield torch.tensor([value, value * value])

    def __len__(self) -> int:
        return self.n


class Uneven(IterableDataset[Tensor]):
    """Worker i yields `lengths[i]` samples."""

    def __init__(self, lengths: Sequence[int]) -> None:
        self.lengths = lengths

    def __iter__(self) -> Iterator[Tensor]:
        info = get_worker_info()
        worker = info.id if info else 0
        for position in range(self.lengths[worker]):
            yield torch.tensor([worker, position])


class FailingIterable(IterableDataset[int]):
    """Raises at one position, in every worker."""

    def __init__(self, at: int) -> None:
        self.at = at

    def __iter__(self) -> Iterator[int]:
        for value in range(8):
            if value == self.at:
                raise ValueError(f"cannot read value {value}")
            yield value


# What a worker sees


class Whereabouts(Squares):
    """Samples say which worker made them."""

    def __getitem__(self, index: int) -> Any:
        info = get_worker_info()
        return torch.tensor([index, -1 if info is None else info.id])


class HeldBack(Whereabouts):
    """The sample at index 0 waits until it is released."""

    def __init__(self, release: Any, n: int) -> None:  # Any: an event of multiprocessing
        super().__init__(n)
        self.release = release

    def __getitem__(self, index: int) -> Any:
        if index == 0:
            assert self.release.wait(100), "the first sample was never released"
        return super().__getitem__(index)


def describe_worker(info: WorkerInfo | None) -> list[Any]:
    """Return the fields of a `WorkerInfo` as plain values; the dataset only by its type."""
    if info is None:
        return ["main"]
    return [info.id, info.num_workers, info.seed, type(info.dataset).__name__]


class WorkerFields(Squares):
    """All of `get_worker_info()`, and whether its dataset is this one."""

    def __getitem__(self, index: int) -> Any:
        info = get_worker_info()
        own = info is None or info.dataset is self
        return [index, *describe_worker(info), own]


class WorkerFieldsIterable(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        for index in range(3):
            yield [index, *describe_worker(info), info is None or info.dataset is self]


class Draws(Squares):
    """What the global generators draw inside a worker."""

    def __getitem__(self, index: int) -> Any:
        return {
            "random": random.random(),
            "numpy": float(np.random.random()),
            "torch": torch.rand(()).item(),
            "seed": torch.initial_seed(),
        }


class WorkerFieldsAndDraws(Draws):
    """Both, so that one worker is enough to compare them."""

    def __getitem__(self, index: int) -> Any:
        return [super().__getitem__(index), *describe_worker(get_worker_info())]


class DrawsIterable(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        for _ in range(4):
            yield {"random": random.random(), "numpy": float(np.random.random()), "torch": torch.rand(()).item()}


class Counter(Squares):
    """Counts its calls: shows whether a worker kept its copy of the dataset, and whether the caller's changed."""

    def __init__(self, n: int = 4) -> None:
        super().__init__(n)
        self.calls = 0
        self.label = "fresh"

    def __getitem__(self, index: int) -> Any:
        self.calls += 1
        return self.calls, self.label


class HeldCounter(Counter):
    """The same; sample 2 waits at a gate, if there is one."""

    def __init__(self, gate: Path, n: int) -> None:
        super().__init__(n)
        self.gate = gate

    def __getitem__(self, index: int) -> Any:
        if index == 2:
            pass_gate(self.gate)
        return super().__getitem__(index)


class ProcessIds(Squares):
    def __getitem__(self, index: int) -> Any:
        return os.getpid(), threading.current_thread() is threading.main_thread()


class NestedLoader(Squares):
    """Runs a loader of its own inside `__getitem__`."""

    def __init__(self, make: Callable[..., Any], n: int = 4) -> None:
        super().__init__(n)
        self.make = make

    def __getitem__(self, index: int) -> Any:
        info = get_worker_info()
        inner = torch.cat(list(self.make(Squares(3), batch_size=2, num_workers=0)))
        assert get_worker_info() is info, "the inner loader changed what the outer worker sees"
        return inner + index


# What goes wrong


class Failing(Squares):
    """Raises the exception that `make` creates at the given indices."""

    def __init__(self, make: Callable[[int], BaseException], at: Sequence[int] = (5,), n: int = 12) -> None:
        super().__init__(n)
        self.make = make
        self.at = tuple(at)

    def __getitem__(self, index: int) -> Tensor:
        if index in self.at:
            raise self.make(index)
        return super().__getitem__(index)


class TwoArguments(Exception):
    """Cannot be built from one message, nor unpickled from its own `args`."""

    def __init__(self, index: int, reason: str) -> None:
        super().__init__(f"sample {index}: {reason}")
        self.index = index
        self.reason = reason


class KeywordOnly(Exception):
    """Cannot be built from positional arguments at all."""

    def __init__(self, *, code: int) -> None:
        super().__init__(f"code {code}")
        self.code = code


class Unpicklable(Exception):
    """Carries something that cannot cross a process boundary."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.lock = threading.Lock()


class WithMessageField(Exception):
    """Has the `message` field that some libraries' exceptions have."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class Picky(Exception):
    """Cannot be built unless its argument is a number."""

    def __init__(self, number: int) -> None:
        super().__init__(f"number {number + 0}")


def value_error(index: int) -> ValueError:
    return ValueError(f"bad sample {index}")


def key_error(index: int) -> KeyError:
    return KeyError(f"column-{index}")


def stop_iteration(index: int) -> StopIteration:
    return StopIteration(f"stopped at {index}")


def unicode_error(index: int) -> UnicodeDecodeError:
    return UnicodeDecodeError("utf-8", b"\xff", 0, 1, f"bad byte in {index}")


def two_arguments(index: int) -> TwoArguments:
    return TwoArguments(index, "broken header")


def keyword_only(index: int) -> KeywordOnly:
    return KeywordOnly(code=index)


def unpicklable_error(index: int) -> Unpicklable:
    return Unpicklable(f"locked {index}")


def message_field(index: int) -> WithMessageField:
    return WithMessageField(f"message {index}")


def picky(index: int) -> Picky:
    return Picky(index)


class Killed(Squares):
    """Kills its own process at one index, after writing its process id to a file."""

    def __init__(self, note: Path, at: int = 3, signal_number: int = signal.SIGKILL) -> None:
        super().__init__(8)
        self.note = note
        self.at = at
        self.signal_number = signal_number

    def __getitem__(self, index: int) -> Tensor:
        if index == self.at:
            self.note.write_text(str(os.getpid()))
            os.kill(os.getpid(), self.signal_number)
        return super().__getitem__(index)


class Stuck(Squares):
    """Makes no sample for half a minute, far longer than a timeout of 0.2 s; threads can be released earlier."""

    def __init__(self) -> None:
        super().__init__(2)
        self.released = threading.Event()

    def __getitem__(self, index: int) -> Tensor:
        self.released.wait(30)
        return super().__getitem__(index)


# Collate functions


def as_list(samples: list[Any]) -> list[Any]:
    return samples


def as_single(sample: Any) -> list[Any]:
    return [sample]


def to_boxes(samples: list[Tensor]) -> Boxes:
    return Boxes(torch.stack(samples), [f"box {int(sample[0])}" for sample in samples])


def to_array(samples: list[Tensor]) -> Any:
    return np.stack([sample.numpy() for sample in samples])


def to_sparse(samples: list[Tensor]) -> Tensor:
    return torch.stack(samples).to_sparse()


def to_channels_last(samples: list[Tensor]) -> Tensor:
    return torch.stack(samples).reshape(-1, 2, 1, 1).expand(-1, 2, 3, 4).contiguous(memory_format=torch.channels_last)


def to_views(samples: list[Tensor]) -> list[Tensor]:
    base = torch.stack(samples)
    return [base, base[:1], base.t(), base[:, 0]]


def to_everything(samples: list[Tensor]) -> Any:
    stacked = torch.stack(samples)
    return {
        "tensor": stacked,
        "nested": [(stacked[0], {"deep": [stacked.int(), None]}), "text", b"bytes"],
        "numbers": (1, 2.5, True, 3 + 4j),
        "set": {1, 2, 3},
        "array": np.arange(4).reshape(2, 2),
        "point": Point(stacked[:, 0], 7),
        "boxes": Boxes(stacked, ["a"]),
        "object": PlainObject(stacked, "note"),
        "bytearray": bytearray(b"changeable"),
        "range": range(3),
        "path": Path("somewhere"),
        "dtype": torch.float16,
        "shape": stacked.shape,
    }


def lock_in_batch(samples: list[Any]) -> Any:
    return {"tensor": torch.stack(samples), "lock": threading.Lock()}


# Worker initialisation functions


def init_nothing(worker_id: int) -> None:
    return None


def init_label(worker_id: int) -> None:
    info = get_worker_info()
    assert info is not None
    assert info.id == worker_id
    dataset: Any = info.dataset  # Any: a `Counter`
    dataset.label = f"set by worker {worker_id}"


def init_fails(worker_id: int) -> None:
    raise RuntimeError(f"worker {worker_id} cannot start")


def init_seeds(worker_id: int) -> None:
    random.seed(100 + worker_id)
    np.random.seed(200 + worker_id)
    torch.manual_seed(300 + worker_id)


def double(value: Any) -> Any:
    return value * 2


class WithHistory(Squares):
    """Samples that were computed from a tensor that requires gradients."""

    def __getitem__(self, index: int) -> Tensor:
        return torch.full((2,), float(index)).requires_grad_() * 2


class Convolving(Squares):
    """Uses the operation that starts torch's intra-op threads."""

    def __getitem__(self, index: int) -> Tensor:
        image = torch.full((1, 16, 64, 64), float(index))
        return torch.nn.functional.conv2d(image, torch.ones(16, 16, 3, 3))[0]


def count_or_one(samples: Any) -> int:
    """Return the number of samples in a batch; a single sample counts as one."""
    return len(samples) if isinstance(samples, list) else 1


def init_seeds_of_random(worker_id: int) -> None:
    """Seed one of the three global generators and leave the others as the loader set them."""
    random.seed(100 + worker_id)
