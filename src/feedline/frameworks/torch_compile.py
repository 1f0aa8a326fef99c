"""Classes that `torch.compile` runs and does not trace.

A compiled function that loops over a loader breaks its graph there, as it does with torch's own loader, whose file
torch skips by its path. Without this mark torch traces feedline's code, which handles memory, locks and processes, and
fails in it.

`torch.compiler.disable` does the same, but imports `torch._dynamo`, which takes seconds, and wraps every call. Two
marks cost nothing at a call: an attribute that stops torch where compiled code calls the method, and a rule on the
method's code object for calls that reach it in any other way. The rule includes everything that the method calls, such
as the user's dataset.
"""

from __future__ import annotations

import sys
from types import FunctionType
from typing import Any, TypeVar

from feedline.system.optional import when_imported

K = TypeVar("K", bound=type)

_waiting: list[type] = []
"""Classes to mark once torch is imported."""


def run_untraced(kind: K) -> K:
    """Have `torch.compile` run the methods of a class, and what they call, as ordinary Python. A class decorator.

    It does not import torch. It has no effect with versions of torch before 2.7, which have no such rule.
    """
    _waiting.append(kind)
    if "torch" in sys.modules:
        when_imported("torch", _mark)
    return kind


# Any: torch, and its private module, which has no types.
def _mark(torch: Any) -> None:
    rules: Any = torch._C._dynamo.eval_frame
    while _waiting:
        kind = _waiting.pop()
        if not hasattr(rules, "set_code_exec_strategy"):
            continue
        for value in vars(kind).values():
            method = value.fget if isinstance(value, property) else value
            if isinstance(method, FunctionType):
                vars(method)["_torchdynamo_disable"] = True
                skip = rules._FrameAction.SKIP
                rules.set_code_exec_strategy(method.__code__, rules._FrameExecStrategy(skip, skip))


when_imported("torch", _mark)
