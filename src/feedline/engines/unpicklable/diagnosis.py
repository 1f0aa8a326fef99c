"""What a culprit is, and what to do about it, in words."""

from __future__ import annotations

import inspect
from types import AsyncGeneratorType, CoroutineType, FunctionType, GeneratorType, ModuleType
from typing import Any

from feedline.engines.handles import database_handle
from feedline.engines.unpicklable.kinds import is_tensor
from feedline.engines.unpicklable.known import LAZILY, known, root_module
from feedline.engines.unpicklable.search import Culprit

_TOP_LEVEL = "at the top level of a module"
_VIEWS: tuple[type, ...] = (type({}.keys()), type({}.values()), type({}.items()))
_OWN_PICKLING = ("__reduce_ex__", "__reduce__", "__getstate__")


def diagnosis(culprit: Culprit) -> tuple[str, str]:
    """Say what the culprit is, to follow "it is", and what to do."""
    value, kind = culprit.value, type(culprit.value)
    if isinstance(culprit.failure, RecursionError):
        return (
            f"an object of type {_name(kind)} whose parts are nested too deeply for pickle",
            "Keep it in a flat form, such as a list whose items refer to each other by number, or let its class give "
            "such a form in __getstate__ and rebuild the rest in __setstate__.",
        )
    if kind is FunctionType:
        return _function(value)
    if kind.__module__ == "functools" and type(getattr(value, "__wrapped__", None)) is FunctionType:
        return _function(value.__wrapped__)  # functools.cache and its like go by the name of what they wrap
    if issubclass(kind, type):
        return _class(value, culprit.is_class_of)
    if issubclass(kind, ModuleType):
        return f"the module {value.__name__}", "Import it where it is used, instead of keeping it in an attribute."
    if issubclass(kind, (GeneratorType, CoroutineType, AsyncGeneratorType)):
        return (
            f"a {kind.__name__.replace('_', ' ')}, made by {value.__qualname__}",
            "Keep what it is made from, and make it in __iter__ or __getitem__, in each worker.",
        )
    whole = known(kind)
    if whole is not None:
        return whole[0].format((database_handle(kind) or _name(kind)) + _file_name(value)), whole[1]
    if kind in _VIEWS:
        return f"a view of a dictionary ({_name(kind)})", "Keep list(...) of it."
    if is_tensor(kind) and value.grad_fn is not None:
        return f"an object of type {_name(kind)} that is part of a computation", "Keep tensor.detach()."
    return _object(kind)


def _file_name(value: Any) -> str:
    name = getattr(value, "name", None) if root_module(type(value)) == "_io" else None
    return f" {name!r}" if isinstance(name, str) else ""


def _object(kind: type) -> tuple[str, str]:
    own = next((method for method in _OWN_PICKLING if hasattr(getattr(kind, method, None), "__code__")), None)
    if own is not None:
        return (
            f"an object of type {_name(kind)} with a {own} of its own, which fails or gives what cannot be pickled",
            f"If the class is yours, correct {own}: the object has to be made again from what it returns. If not, keep "
            f"what it is made from, and make it {LAZILY}.",
        )
    return (
        f"an object of type {_name(kind)}, which pickle does not know how to take apart",
        "If the class is yours, give it a __getstate__ that leaves out what cannot be pickled and a __setstate__ that "
        "makes it again, or a __reduce__ that says how to make the whole. If not, keep what it is made from, and make "
        f"it {LAZILY}.",
    )


def _name(kind: type) -> str:
    name = f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins.")
    return name.replace("_thread.lock", "threading.Lock").replace("_thread.", "threading.")


def _function(function: FunctionType) -> tuple[str, str]:
    where = f"defined at {function.__code__.co_filename}:{function.__code__.co_firstlineno}"
    if function.__name__ == "<lambda>":
        return (
            f"a lambda, {where}",
            f"Define it with `def` {_TOP_LEVEL}, and give it the values it needs with functools.partial.",
        )
    if "<locals>" in function.__qualname__:
        return (
            f"the function {function.__qualname__}, {where}, inside another function",
            f"Define it {_TOP_LEVEL}, and give it the values it needs with functools.partial.",
        )
    return (
        f"the function {function.__module__}.{function.__qualname__}, {where}, and that name does not lead to it",
        "A decorator that returns something else under the same name is the usual reason, or a notebook's cell that "
        f"was run again. Give the function a name of its own {_TOP_LEVEL}, or build the dataset and the loader again.",
    )


def _class(kind: type, is_class_of: bool) -> tuple[str, str]:
    name = f"{kind.__module__}.{kind.__qualname__}"
    subject = f"an object of the class {name}" if is_class_of else f"the class {name}"
    if "<locals>" in kind.__qualname__:
        return f"{subject}, which is defined inside a function{_source(kind)}", f"Define the class {_TOP_LEVEL}."
    return (
        f"{subject}{_source(kind)}, and that name does not lead to the class",
        "A notebook's cell that was run again is the usual reason: objects made before are of the old class. Build the "
        "dataset and the loader again, and better put the class into a module, a file that the notebook imports.",
    )


def _source(kind: type) -> str:
    try:
        return f" at {inspect.getsourcefile(kind)}:{inspect.getsourcelines(kind)[1]}"
    except (OSError, TypeError):  # it has none, as in an interactive session
        return ""
