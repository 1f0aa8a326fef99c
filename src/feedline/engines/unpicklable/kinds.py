"""Types of array libraries, known by their names: none of these libraries is imported for it."""

from __future__ import annotations


def is_storage(kind: type) -> bool:
    """True for the memory behind tensors of torch."""
    return _base_named(kind, "torch.storage", "UntypedStorage", "TypedStorage") is not None


def is_tensor(kind: type) -> bool:
    """True for tensors of torch."""
    return _base_named(kind, "torch", "Tensor") is not None


def ndarray_of(kind: type) -> type | None:
    """Return NumPy's class of arrays if this is one of its kind, else None."""
    return _base_named(kind, "numpy", "ndarray")


def _base_named(kind: type, module: str, *names: str) -> type | None:
    return next((base for base in kind.__mro__ if base.__module__ == module and base.__name__ in names), None)
