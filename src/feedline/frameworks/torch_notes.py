"""Notes on exceptions about a loader's arguments: which argument is to blame, and what to write instead.

The exception and its message stay torch's, because programs may inspect them. The note is ours.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

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
    for words, (names, advice) in _ADVICE.items():
        if words in text:
            values = {name: arguments.get(name) for name in names}
            given = [f"{name}={_shown(one)}" for name, one in values.items() if one is not None and one is not False]
            add_note(exc, f"{', '.join(given)}: {advice}")
            return
    if isinstance(exc, TypeError):
        _explain_types(exc, arguments)


def _shown(value: object) -> str:
    return repr(value) if isinstance(value, (int, float, str)) else f"<{type(value).__name__}>"


def _explain_types(exc: TypeError, arguments: Mapping[str, object]) -> None:
    for name, (wrong, advice) in _TYPES.items():
        if name in arguments and isinstance(arguments[name], wrong):
            add_note(exc, f"{name}={arguments[name]!r} has type {type(arguments[name]).__name__}. {advice}")
    for name in ("dataset", "sampler", "batch_sampler"):
        given = arguments.get(name)
        if isinstance(given, type):
            add_note(exc, f"{name}={given.__name__} is a class. Pass an instance: {name}={given.__name__}(...).")
    dataset = arguments.get("dataset")
    if isinstance(dataset, os.PathLike):
        add_note(exc, f"dataset={dataset!r} is a path, not a dataset. {INSTEAD_OF_PATH}")
    elif "has no len()" in str(exc) and not isinstance(dataset, type) and not hasattr(type(dataset), "__len__"):
        add_note(
            exc,
            f"The dataset's class {type(dataset).__name__} has no __len__, so its indices are not known. Add `def "
            "__len__(self)`, which returns the number of samples. If samples can only be read in sequence, derive the "
            "class from torch.utils.data.IterableDataset and write `def __iter__(self)` instead of __getitem__.",
        )


_NOTHING = type(None)
_TYPES: dict[str, tuple[tuple[type, ...], str]] = {
    "num_workers": ((str, float, _NOTHING), "Give an integer, such as num_workers=4, or 'auto'."),
    "timeout": ((str, _NOTHING), "Give seconds; 0 waits without a limit."),
    "prefetch_factor": ((str,), "Give an integer, or 'auto'."),
}
"""Types of arguments that torch rejects without naming the argument, and what to give instead."""

_WORKERS = "this needs worker processes, but num_workers is 0. Give num_workers=1 or more, or leave it out."
_ADVICE: dict[str, tuple[tuple[str, ...], str]] = {
    "num_workers option should be non-negative": (
        ("num_workers",),
        "give 0 to load in the training process, a number of workers, or 'auto' to let feedline choose.",
    ),
    "timeout option should be non-negative": (("timeout",), "give seconds, or 0 to wait without limit."),
    "prefetch_factor option should be non-negative": (
        ("prefetch_factor",),
        "give the number of batches that each worker prepares ahead, or None for 2.",
    ),
    "prefetch_factor option could only be specified": (("prefetch_factor",), _WORKERS),
    "persistent_workers option needs": (("persistent_workers",), _WORKERS),
    "multiprocessing_context can only be used": (("multiprocessing_context",), _WORKERS),
    "batch_size should be a positive integer": (
        ("batch_size",),
        "give a positive integer, such as 32, and convert values from a command line with int(). batch_size=None gives "
        "samples one by one, without a batch dimension.",
    ),
    "sampler option is mutually exclusive with shuffle": (
        ("sampler", "shuffle"),
        "each decides the order. Drop one. Samplers that shuffle are RandomSampler(dataset) and "
        "DistributedSampler(..., shuffle=True).",
    ),
    "batch_sampler option is mutually exclusive": (
        ("batch_sampler", "batch_size", "shuffle", "sampler", "drop_last"),
        "a batch sampler decides which samples make a batch, their order, and whether to drop the last one. Drop it, "
        "or the others.",
    ),
    "batch_size=None option disables auto-batching": (
        ("drop_last",),
        "without batches there is no incomplete last batch: drop drop_last=True, or give a batch_size.",
    ),
    "DataLoader with IterableDataset: expected unspecified": (
        ("dataset", "shuffle", "sampler", "batch_sampler"),
        "an iterable dataset decides the order of its samples itself: drop the others. To shuffle, do so in its "
        "__iter__: shuffle the list of files, and yield random samples from a buffer of a few thousand. feedline's "
        "streams do both: ParquetDataset(...).stream(shuffle=True).",
    ),
    "num_samples should be a positive integer": (
        ("dataset",),
        "it has no samples, and torch cannot shuffle it. Check the path or filter that it was made with; without "
        "shuffle=True, an empty dataset gives no batches.",
    ),
}
"""By a fragment of torch's message: the arguments that are to blame, and what to write instead."""
