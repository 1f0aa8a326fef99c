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

from types import FunctionType
from typing import Any

import torch

_eval_frame: Any = torch._C._dynamo.eval_frame  # Any: private, with no types


def run_untraced(*kinds: type) -> None:
    """Have `torch.compile` run the methods of these classes, and what they call, as ordinary Python.

    Has no effect with versions of torch before 2.7, which have no such rule.
    """
    if not hasattr(_eval_frame, "set_code_exec_strategy"):
        return
    skip = _eval_frame._FrameAction.SKIP
    for kind in kinds:
        for value in vars(kind).values():
            method = value.fget if isinstance(value, property) else value
            if isinstance(method, FunctionType):
                vars(method)["_torchdynamo_disable"] = True
                _eval_frame.set_code_exec_strategy(method.__code__, _eval_frame._FrameExecStrategy(skip, skip))
