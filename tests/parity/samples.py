"""Samples of every kind, for collate functions."""

import collections
import enum
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from tests.parity import datasets

Make = Callable[[], list[Any]]  # Any: samples of every kind


class Colour(enum.IntEnum):
    RED = 1
    BLUE = 2


def tagged_dict(index: int) -> Any:
    sample = datasets.TaggedDict(x=torch.tensor(index), y=index)
    sample.tag = "kept"
    return sample


def tagged_list(index: int) -> Any:
    sample = datasets.TaggedList([index, float(index)])
    sample.tag = "kept"
    return sample


def with_nan() -> list[Any]:
    return [float("nan"), float("inf"), -0.0, 1e-310]


# Four samples each; batches of two and of three follow.
SAMPLES: dict[str, Make] = {
    "ints": lambda: [1, -2, 3, 2**62],
    "floats": lambda: [1.0, 0.1, -3.5, 1e300],
    "odd floats": with_nan,
    "bools": lambda: [True, False, True, True],
    "floats and ints": lambda: [2.5, 1, 4.5, 3],
    "complex": lambda: [{"x": torch.tensor(1 + 2j)}] * 4,
    "enums": lambda: [Colour.RED, Colour.BLUE, Colour.RED, Colour.RED],
    "keys that only later samples have": lambda: [{"a": 1}, {"a": 2, "b": 3}, {"a": 3}, {"a": 4, "b": 5}],
    "strings": lambda: ["a", "", "long" * 50, "ünï"],
    "bytes": lambda: [b"a", b"", b"\x00\xff", b"z"],
    "NumPy strings": lambda: [np.str_("a"), np.str_("b"), np.str_("c"), np.str_("d")],
    "float32 scalars": lambda: [np.float32(0.1), np.float32(2), np.float32(3), np.float32(4)],
    "int64 scalars": lambda: [np.int64(1), np.int64(-2), np.int64(3), np.int64(4)],
    "mixed scalars": lambda: [np.float32(1), np.float64(2), np.int64(3), np.float32(4)],
    "zero-dimensional arrays": lambda: [np.array(i) for i in range(4)],
    "arrays": lambda: [np.full((2, 3), i, dtype=np.float32) for i in range(4)],
    "uint8 images": lambda: [np.full((4, 4, 3), i, dtype=np.uint8) for i in range(4)],
    "transposed arrays": lambda: [np.arange(6).reshape(2, 3).T + i for i in range(4)],
    "tensors": lambda: [torch.full((2, 3), float(i)) for i in range(4)],
    "expanded tensors": lambda: [torch.tensor([[float(i)]]).expand(3, 2) for i in range(4)],
    "channels last": lambda: [
        torch.ones(1, 3, 2, 2).contiguous(memory_format=torch.channels_last)[0] * i for i in range(4)
    ],
    "bfloat16 tensors": lambda: [torch.tensor([i / 3], dtype=torch.bfloat16) for i in range(4)],
    "conjugated tensors": lambda: [torch.tensor([i + 1j]).conj() for i in range(4)],
    "empty inner dimension": lambda: [torch.empty(2, 0, 3) for _ in range(4)],
    "tuples": lambda: [(torch.tensor(i), i, str(i)) for i in range(4)],
    "nested": lambda: [{"a": [(i, {"b": np.float32(i)})], "c": ((i,), [i])} for i in range(4)],
    "empty containers": lambda: [{"a": [], "b": {}} for _ in range(4)],
    "namedtuples": lambda: [datasets.Point(torch.tensor(i), {"z": i}) for i in range(4)],
    "ordered dicts": lambda: [collections.OrderedDict(b=i, a=float(i)) for i in range(4)],
    "user dicts": lambda: [collections.UserDict({"a": i}) for i in range(4)],
    "dicts with extra keys": lambda: [{"a": i, **({"b": i} if i else {})} for i in range(4)],
    "tagged dicts": lambda: [tagged_dict(i) for i in range(4)],
    "tagged lists": lambda: [tagged_list(i) for i in range(4)],
    "deques": lambda: [collections.deque([i, i + 1]) for i in range(4)],
    "tensor subclasses": lambda: [torch.ones(2).mul(i).as_subclass(datasets.TaggedTensor) for i in range(4)],
    "parameters without gradients": lambda: [
        torch.nn.Parameter(torch.ones(2) * i, requires_grad=False) for i in range(4)
    ],
    "buffers of bytes": lambda: [torch.frombuffer(bytearray([i, 2, 3]), dtype=torch.uint8) for i in range(4)],
    "memory maps": lambda: [np.arange(3).view(np.memmap) + i for i in range(4)],
}

UNCOLLATABLE: dict[str, tuple[Make, str]] = {
    "nothing": (lambda: [None, None], "found <class 'NoneType'>"),
    "objects": (lambda: [object(), object()], "found <class 'object'>"),
    "dataclasses": (lambda: [datasets.Boxes(torch.ones(2), ["a"])] * 2, "Boxes'>"),
    "sets": (lambda: [{1}, {2}], "found <class 'set'>"),
    "object arrays": (lambda: [np.array([None], dtype=object)] * 2, "found object"),
    "nothing after numbers": (lambda: [1, None], "NoneType"),
    "lists of different lengths": (lambda: [[1], [1, 2]], "each element in list of batch should be of equal size"),
    "tensors of different shapes": (lambda: [torch.ones(2), torch.ones(3)], "size"),
    "a missing key": (lambda: [{"a": 1, "b": 2}, {"a": 1}], "b"),
    "numbers after strings in a list": (lambda: [[1], ["a"]], "str"),
    "sparse tensors": (lambda: [torch.eye(2).to_sparse()] * 2, "sparse tensors are not currently supported"),
    "nested tensors": (
        lambda: [torch.nested.nested_tensor([torch.ones(1), torch.ones(2)])] * 2,
        "nested tensors are not currently supported",
    ),
    "too large a number": (lambda: [2**70, 1], ""),
}
"""Samples that cannot be collated, and a part of the message."""
