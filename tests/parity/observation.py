"""What a piece of code did, as plain facts that can be compared and stored.

A batch is turned into nested tuples of types, shapes and values, so that two loaders' results compare with `==`,
a difference is readable, and an expected result can be stored for later tests without holding on to memory.
"""

import random
import re
import traceback
import types
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import numpy as np
import torch

from feedline.errors import DataWarning

Facts = object
"""Nested tuples of strings, numbers and types."""

UNCOMPARED_WARNINGS = (
    # Depends on the machine's number of cores; `test_arguments.py` checks it with a controlled number of workers.
    "This DataLoader will create",
    # Python 3.12 and later warn about every fork of a process with threads.
    "is multi-threaded, use of fork()",
    # torch warns about these once per process, so the second loader does not trigger them.
    "(Triggered internally at",
)


@dataclass(frozen=True)
class Failure:
    """An exception that reached the caller, without the frames it would keep alive."""

    kind: type[BaseException]
    text: str
    report: str
    """The text Python would print: the exception, its notes, its causes and their tracebacks."""

    @classmethod
    def of(cls, error: BaseException) -> "Failure":
        """Describe the exception and release its frames.

        An exception that torch raises for a worker is in a reference cycle with the frames that raised it, and so is
        the iterator; left to the garbage collector, its shutdown takes five seconds.
        """
        notes = "\n".join(getattr(error, "__notes__", []))  # printed by Python itself from 3.11 on
        report = "".join(traceback.format_exception(type(error), error, error.__traceback__))
        traceback.clear_frames(error.__traceback__)
        return cls(kind=type(error), text=str(error), report=f"{report}\n{notes}")


@dataclass(frozen=True)
class Observation:
    """Everything about a piece of code that is visible from outside."""

    value: Facts
    failure: Failure | None
    warnings: tuple[tuple[str, str], ...]
    """Category and text, each once, in order of appearance."""
    generators: tuple[float, ...]
    """The next draw of each global generator: users depend on how much the code drew from them."""


def observe(code: Callable[[], object]) -> Observation:
    """Run `code` with a fixed seed; record its result, exception, warnings and random draws."""
    torch.manual_seed(20)
    random.seed(21)
    np.random.seed(22)
    value: Facts = None
    failure: Failure | None = None
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            value = describe(code())
        except Exception as error:
            failure = Failure.of(error)
    seen: dict[tuple[str, str], None] = {}
    for warning in caught:
        text = str(warning.message)
        is_intended = issubclass(warning.category, DataWarning)  # torch does not warn; see docs/compatibility.md
        if not is_intended and not any(uncompared in text for uncompared in UNCOMPARED_WARNINGS):
            seen[warning.category.__name__, normalise(text)] = None
    return Observation(value, failure, tuple(seen), _next_draws())


def outcome(code: Callable[[], object]) -> Facts:
    """Run `code`; return facts about its result, or its exception without notes and tracebacks."""
    try:
        return describe(code())
    except Exception as error:
        return type(error), str(error)


def _next_draws() -> tuple[float, ...]:
    return torch.rand(()).item(), random.random(), float(np.random.random())


def normalise(text: str) -> str:
    """Remove from a message what differs from run to run: addresses and process ids."""
    text = re.sub(r"0x[0-9a-f]+", "0x...", text)
    return re.sub(r"(pid(?:\(s\))?) [0-9, ]+", r"\1 ...", text)


def describe(value: Any) -> Facts:  # Any: everything that a loader may deliver
    """Turn a batch, or anything else, into facts that compare with `==`."""
    if isinstance(value, torch.Tensor):
        return _describe_tensor(value)
    if isinstance(value, np.ndarray):
        return _describe_array(value)
    if isinstance(value, BaseException):
        return ("raised", type(value).__name__)
    if isinstance(value, Mapping):
        items = tuple((describe(key), describe(item)) for key, item in value.items())
        return (_name(value), items, *_attributes(value))
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return (_name(value), tuple((name, describe(item)) for name, item in zip(value._fields, value, strict=True)))
    if isinstance(value, (list, tuple)):
        return (_name(value), tuple(describe(item) for item in value), *_attributes(value))
    if isinstance(value, (set, frozenset)):
        return (_name(value), tuple(sorted((describe(item) for item in value), key=repr)))
    if isinstance(value, type | types.FunctionType | types.BuiltinFunctionType):
        return value
    if is_dataclass(value):
        return (_name(value), tuple((field.name, describe(getattr(value, field.name))) for field in fields(value)))
    if isinstance(value, torch.Generator):
        return (_name(value), value.initial_seed())
    if "__repr__" not in {name for kind in type(value).__mro__[:-1] for name in vars(kind)}:
        return (_name(value), *_attributes(value))
    return (_name(value), normalise(repr(value)))


def _name(value: object) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"


def _attributes(value: object) -> tuple[Facts, ...]:
    attributes = getattr(value, "__dict__", {})
    return tuple((name, describe(item)) for name, item in attributes.items())


def _describe_array(array: np.ndarray[Any, Any]) -> Facts:
    return (_name(array), array.dtype.str, array.shape, repr(array.tolist()), f"writeable={array.flags.writeable}")


def _describe_tensor(tensor: torch.Tensor) -> Facts:
    facts = (
        _name(tensor),
        str(tensor.dtype),
        str(tensor.layout),
        str(tensor.device),
        tuple(tensor.shape) if not tensor.is_nested else "nested",
        f"requires_grad={tensor.requires_grad}",
    )
    return (*facts, *_contents(tensor.detach()), *_attributes(tensor))


def _contents(tensor: torch.Tensor) -> tuple[Facts, ...]:
    if tensor.is_nested:
        return tuple(describe(part) for part in tensor.unbind())
    if tensor.layout is torch.sparse_coo:
        coalesced = tensor.is_coalesced()
        return (f"coalesced={coalesced}", describe(tensor._indices()), describe(tensor._values()))
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        return describe(tensor.crow_indices()), describe(tensor.col_indices()), describe(tensor.values())
    if tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        return describe(tensor.ccol_indices()), describe(tensor.row_indices()), describe(tensor.values())
    layout = _memory_order(tensor)
    if tensor.is_quantized:
        scheme = str(tensor.qscheme())
        if "channel" in scheme:
            parameters = (describe(tensor.q_per_channel_scales()), describe(tensor.q_per_channel_zero_points()))
            return (layout, scheme, *parameters, tensor.q_per_channel_axis(), repr(tensor.int_repr().tolist()))
        return (layout, scheme, tensor.q_scale(), tensor.q_zero_point(), repr(tensor.int_repr().tolist()))
    flags = f"conj={tensor.is_conj()} neg={tensor.is_neg()}"
    return (layout, flags, repr(tensor.as_subclass(torch.Tensor).tolist()))


def _memory_order(tensor: torch.Tensor) -> str:
    """Return the order of the dimensions in memory, and which of them are only repeated.

    Not the strides themselves: whether a view arrives with its gaps is visible only in memory.
    """
    if not tensor.numel():
        return "empty"
    dimensions = [dimension for dimension, size in enumerate(tensor.shape) if size > 1]
    repeated = [dimension for dimension in dimensions if tensor.stride(dimension) == 0]
    moving = [dimension for dimension in dimensions if tensor.stride(dimension) != 0]
    return f"order={sorted(moving, key=tensor.stride, reverse=True)} repeated={repeated}"
