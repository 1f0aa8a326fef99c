"""Notes on exceptions about a loader's arguments that do not say themselves what to write instead.

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
    for words, advice in _ADVICE.items():
        if words in str(exc):
            add_note(exc, advice)
    if isinstance(exc, TypeError):
        _explain_types(exc, arguments)


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

_ADVICE = {
    "DataLoader with IterableDataset: expected unspecified": (
        "An iterable dataset decides the order of its samples itself. To shuffle, do so in its __iter__: shuffle the "
        "list of files, and yield random samples from a buffer of a few thousand. feedline's streams do both: "
        "ParquetDataset(...).stream(shuffle=True)."
    ),
    "num_samples should be a positive integer": (
        "The dataset has no samples, and torch cannot shuffle it. Check the path or filter that it was made with; "
        "without shuffle=True, an empty dataset gives no batches."
    ),
}
"""By a fragment of torch's message: what to write instead."""
