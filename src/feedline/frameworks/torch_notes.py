"""Notes on exceptions about a loader's arguments: which argument is to blame, and what to write instead.

The exception and its message stay torch's, because programs may inspect them. The note is ours.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping

from feedline.errors import FeedlineError
from feedline.system.failures import INSTEAD_OF_PATH, add_note


def explain(exc: Exception, arguments: Mapping[str, object]) -> None:
    """Add notes to an exception from torch or Python that one of the arguments has caused.

    Args:
        exc: raised when the loader was created, measured or iterated over. feedline's own errors get no notes.
        arguments: the loader's arguments, by torch's names.
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


def _explain_types(exc: TypeError, arguments: Mapping[str, object]) -> None:
    count, dataset = arguments.get("num_workers", 0), arguments.get("dataset")
    if count is None or isinstance(count, (str, float)):
        kind = "no number" if count is None else f"a {type(count).__name__}"
        add_note(exc, f"num_workers={count!r} is {kind}. Give an integer, such as num_workers=4, or 'auto'.")
    if arguments.get("timeout", 0) is None or isinstance(arguments.get("timeout"), str):
        add_note(exc, f"timeout={arguments['timeout']!r} is no number. Give seconds; 0 waits without a limit.")
    if isinstance(arguments.get("prefetch_factor"), str):
        add_note(exc, f"prefetch_factor={arguments['prefetch_factor']!r} is a string. Give an integer, or 'auto'.")
    for name in ("sampler", "batch_sampler"):
        given = arguments.get(name)
        if isinstance(given, type):
            add_note(exc, f"{name}={given.__name__} is a class. Pass an instance: {name}={given.__name__}(...).")
    if isinstance(dataset, type):
        add_note(exc, f"dataset={dataset.__name__} is a class. Pass an instance: {dataset.__name__}(...).")
    elif isinstance(dataset, os.PathLike):
        add_note(exc, f"dataset={dataset!r} is a path, not a dataset. {INSTEAD_OF_PATH}")
    elif "has no len()" in str(exc) and dataset is not None and not hasattr(type(dataset), "__len__"):
        kind = type(dataset).__name__
        add_note(
            exc,
            f"The dataset's class {kind} has no __len__, so its indices are not known. Add `def __len__(self)`, "
            "which returns the number of samples. If samples can only be read in sequence, derive the class "
            "from torch.utils.data.IterableDataset and write `def __iter__(self)` instead of __getitem__.",
        )


def _batch_size(arguments: Mapping[str, object]) -> str:
    size = arguments.get("batch_size", 1)
    if isinstance(size, str) and size.strip().isdecimal():
        return (
            f"batch_size={size!r} is a string, not a number. Write batch_size={int(size)}; convert values from a "
            "command line or configuration file with int()."
        )
    if isinstance(size, bool) or not isinstance(size, int):
        return f"batch_size={size!r} has type {type(size).__name__}. Give a positive integer, such as 32."
    return (
        f"batch_size={size} would make batches without samples. Give a positive integer, or batch_size=None to get "
        "samples one by one, without a batch dimension."
    )


def _sampler_and_shuffle(arguments: Mapping[str, object]) -> str:
    kind = type(arguments.get("sampler")).__name__
    shuffling = f"{kind}(..., shuffle=True)" if "Distributed" in kind else "RandomSampler(dataset)"
    return (
        f"sampler= (a {kind}) and shuffle=True were both given, and each decides the order. Drop shuffle=True to keep "
        f"the sampler's order, or drop sampler=. A sampler that shuffles is {shuffling}."
    )


def _batch_sampler(arguments: Mapping[str, object]) -> str:
    usual = {"batch_size": 1, "shuffle": None, "sampler": None, "drop_last": False}
    others = [f"{name}=" for name, value in usual.items() if arguments.get(name, value) not in (value, False)]
    return (
        f"batch_sampler= decides which samples make a batch, so {', '.join(others) or 'the others'} cannot be given "
        "with it. Drop one or the other: the batch sampler also decides the order, and whether to drop the last batch."
    )


def _iterable(arguments: Mapping[str, object]) -> str:
    kind = type(arguments.get("dataset")).__name__
    given = [f"{name}=" for name in ("shuffle", "sampler", "batch_sampler") if arguments.get(name) is not None]
    return (
        f"{kind} is an iterable dataset, which decides the order of its samples itself: drop {' and '.join(given)}. To "
        "shuffle, do so in its __iter__: shuffle the list of files, and yield random samples from a buffer of a few "
        "thousand. feedline's streams do both: ParquetDataset(...).stream(shuffle=True)."
    )


def _negative(name: str, instead: str) -> Callable[[Mapping[str, object]], str]:
    return lambda arguments: f"{name}={arguments.get(name)!r} is negative. {instead}"


def _needs_workers(name: str) -> Callable[[Mapping[str, object]], str]:
    return lambda arguments: (
        f"{name}={arguments.get(name)!r} needs worker processes, but num_workers is 0. Give num_workers=1 or more, "
        f"or drop {name}=."
    )


_NOTES: dict[str, Callable[[Mapping[str, object]], str]] = {
    "num_workers option should be non-negative": _negative(
        "num_workers", "Give 0 to load in the training process, a number of workers, or 'auto' to let feedline choose."
    ),
    "timeout option should be non-negative": _negative("timeout", "Give seconds, or 0 to wait without limit."),
    "prefetch_factor option should be non-negative": _negative(
        "prefetch_factor", "Give the number of batches that each worker prepares ahead, or None for 2."
    ),
    "prefetch_factor option could only be specified": _needs_workers("prefetch_factor"),
    "persistent_workers option needs": _needs_workers("persistent_workers"),
    "multiprocessing_context can only be used": _needs_workers("multiprocessing_context"),
    "batch_size should be a positive integer": _batch_size,
    "sampler option is mutually exclusive with shuffle": _sampler_and_shuffle,
    "batch_sampler option is mutually exclusive": _batch_sampler,
    "batch_size=None option disables auto-batching": lambda _: (
        "Without batches there is no incomplete last batch: drop drop_last=True, or give a batch_size."
    ),
    "DataLoader with IterableDataset: expected unspecified": _iterable,
    "num_samples should be a positive integer": lambda arguments: (
        f"The dataset ({type(arguments.get('dataset')).__name__}) has no samples, and torch cannot shuffle it. Check "
        "the path or filter that it was made with; without shuffle=True, an empty dataset gives no batches."
    ),
}
"""Functions that return a note, by a fragment of torch's message."""
