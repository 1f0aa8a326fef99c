"""Notes on exceptions about a loader's arguments: which argument is to blame, and what to write instead.

The exception and its message stay torch's, because programs may inspect them. The note is ours.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

from feedline.errors import FeedlineError
from feedline.system.failures import INSTEAD_OF_PATH, add_note

# Any, throughout: arguments are what the user gave, of any type.


def explain(exc: Exception, arguments: Mapping[str, Any]) -> None:
    """Add notes to an exception of torch's, or of Python's, about an argument that is to blame for it.

    Args:
        exc: what was raised when the loader was made, measured or iterated over. Errors of feedline explain themselves.
        arguments: the loader's, by torch's names for them.
    """
    if isinstance(exc, FeedlineError):
        return
    text = str(exc)
    for words, note in _NOTES.items():
        if words in text:
            add_note(exc, note(arguments))
            return
    if isinstance(exc, TypeError):
        _explain_types(exc, arguments)


def _explain_types(exc: TypeError, arguments: Mapping[str, Any]) -> None:
    count, dataset = arguments.get("num_workers", 0), arguments.get("dataset")
    if isinstance(count, (str, float)):
        kind = type(count).__name__
        add_note(exc, f"num_workers={count!r} is a {kind}. Give an integer, such as num_workers=4, or 'auto'.")
    if isinstance(arguments.get("prefetch_factor"), str):
        add_note(exc, f"prefetch_factor={arguments['prefetch_factor']!r} is a text. Give an integer, or 'auto'.")
    for name in ("sampler", "batch_sampler"):
        given = arguments.get(name)
        if isinstance(given, type):
            add_note(exc, f"{name}={given.__name__} is a class. Give an object of it: {name}={given.__name__}(...).")
    if isinstance(dataset, type):
        add_note(exc, f"dataset={dataset.__name__} is a class. Give an object of it: {dataset.__name__}(...).")
    elif isinstance(dataset, os.PathLike):
        add_note(exc, f"dataset={dataset!r} is a path, not a dataset. {INSTEAD_OF_PATH}")
    elif "has no len()" in str(exc) and dataset is not None and not hasattr(type(dataset), "__len__"):
        kind = type(dataset).__name__
        add_note(
            exc,
            f"The dataset, of the class {kind}, has no __len__, so its indices are not known. Add "
            "`def __len__(self)` that returns the number of samples. If they come one after the other, let the class "
            "inherit from torch.utils.data.IterableDataset and write `def __iter__(self)` instead of __getitem__.",
        )


def _batch_size(arguments: Mapping[str, Any]) -> str:
    size = arguments.get("batch_size", 1)
    if isinstance(size, str) and size.strip().isdecimal():
        return (
            f"batch_size={size!r} is a text, not a number. Write batch_size={int(size)}; convert what comes from a "
            "command line or a configuration file with int()."
        )
    if isinstance(size, bool) or not isinstance(size, int):
        return f"batch_size={size!r} is of the type {type(size).__name__}. Give an integer from 1 up, such as 32."
    return (
        f"batch_size={size} would make batches without samples. Give an integer from 1 up, or batch_size=None to get "
        "samples one by one, without a batch dimension."
    )


def _sampler_and_shuffle(arguments: Mapping[str, Any]) -> str:
    kind = type(arguments.get("sampler")).__name__
    shuffling = f"{kind}(..., shuffle=True)" if "Distributed" in kind else "RandomSampler(dataset)"
    return (
        f"sampler= (a {kind}) and shuffle=True were both given, and each decides the order. Drop shuffle=True to keep "
        f"the sampler's order, or drop sampler=. A sampler that shuffles is {shuffling}."
    )


def _batch_sampler(arguments: Mapping[str, Any]) -> str:
    usual = {"batch_size": 1, "shuffle": None, "sampler": None, "drop_last": False}
    others = [f"{name}=" for name, value in usual.items() if arguments.get(name, value) not in (value, False)]
    return (
        f"batch_sampler= decides which samples make a batch, so {', '.join(others) or 'the others'} cannot be given "
        "beside it. Drop either; batch size, order and what becomes of an incomplete batch are the batch sampler's."
    )


def _iterable(arguments: Mapping[str, Any]) -> str:
    kind = type(arguments.get("dataset")).__name__
    given = [f"{name}=" for name in ("shuffle", "sampler", "batch_sampler") if arguments.get(name) is not None]
    return (
        f"{kind} is an iterable dataset, which decides the order of its samples itself: drop {' and '.join(given)}. To "
        "shuffle, do it in its __iter__: shuffle the list of files, and keep a buffer of some thousand samples from "
        "which you yield a random one. Streams of feedline do both: ParquetDataset(...).stream(shuffle=True)."
    )


def _negative(name: str, instead: str) -> Callable[[Mapping[str, Any]], str]:
    return lambda arguments: f"{name}={arguments.get(name)!r} is negative. {instead}"


def _needs_workers(name: str) -> Callable[[Mapping[str, Any]], str]:
    return lambda arguments: (
        f"{name}={arguments.get(name)!r} is about worker processes, and num_workers is 0. Give num_workers=1 or more, "
        f"or drop {name}=."
    )


_NOTES: dict[str, Callable[[Mapping[str, Any]], str]] = {
    "num_workers option should be non-negative": _negative(
        "num_workers", "Give 0 to load in the training process, a number of workers, or 'auto' to have it found."
    ),
    "timeout option should be non-negative": _negative("timeout", "Give seconds, or 0 to wait without limit."),
    "prefetch_factor option should be non-negative": _negative(
        "prefetch_factor", "Give the number of batches that each worker makes ahead, or None for 2."
    ),
    "prefetch_factor option could only be specified": _needs_workers("prefetch_factor"),
    "persistent_workers option needs": _needs_workers("persistent_workers"),
    "multiprocessing_context can only be used": _needs_workers("multiprocessing_context"),
    "batch_size should be a positive integer": _batch_size,
    "sampler option is mutually exclusive with shuffle": _sampler_and_shuffle,
    "batch_sampler option is mutually exclusive": _batch_sampler,
    "batch_size=None option disables auto-batching": lambda _: (
        "Without batches there is no incomplete last one: drop drop_last=True, or give a batch_size."
    ),
    "DataLoader with IterableDataset: expected unspecified": _iterable,
    "num_samples should be a positive integer": lambda arguments: (
        f"The dataset ({type(arguments.get('dataset')).__name__}) has no samples, and torch refuses to shuffle none. "
        "Check the path or filter that it was made with; without shuffle=True an empty dataset gives no batches."
    ),
}
"""By words of torch's message."""
