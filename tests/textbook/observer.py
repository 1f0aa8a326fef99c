"""Runs a script in a separate process, as `__main__`, and records what it did."""

import builtins
import gc
import multiprocessing
import numbers
import os
import pickle
import random
import re
import sys
import types
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch

from feedline.errors import DataWarning
from tests.parity.observation import UNCOMPARED_WARNINGS, describe, normalise

SEED = 20
_FORK = multiprocessing.get_context("fork")
_TIMES = re.compile(r"[\d.]+(?:e-?\d+)? ?(?:s|sec|seconds?|ms|samples/s|batches/s)\b")

Facts = dict[str, Any]
"""What a script did, by kind. Any: the results of `describe`."""


def observed(script: Path, folder: Path) -> Facts:
    """Run a script in a new, empty folder, in a process forked from this one."""
    folder.mkdir()
    output, errors, answer = (folder.with_suffix(suffix) for suffix in (".out", ".err", ".facts"))
    process = _FORK.Process(target=_run, args=(script, folder, output, errors, answer))
    process.start()
    process.join(140)  # both runs of a test end before pytest's timeout
    is_late = process.is_alive()
    if is_late:
        process.kill()
        process.join()
    text = output.read_text()
    assert not is_late, f"{script} has not ended:\n{text}\n{errors.read_text()}"
    assert process.exitcode == 0, errors.read_text()
    facts: Facts = pickle.loads(answer.read_bytes())
    return {**facts, "lines": sorted(map(_without_times, text.splitlines()))}


def _without_times(line: str) -> str:
    return _TIMES.sub("...", line)


def _run(script: Path, folder: Path, output: Path, errors: Path, answer: Path) -> None:
    os.chdir(folder)
    for fd, path in ((1, output), (2, errors)):
        with open(path, "w") as file:
            os.dup2(file.fileno(), fd)
    sys.stdout, sys.stderr = (os.fdopen(fd, "w", buffering=1, closefd=False) for fd in (1, 2))
    torch.manual_seed(SEED)
    random.seed(SEED)
    np.random.seed(SEED)
    module = types.ModuleType("__main__")
    module.__file__ = str(script)
    sys.modules["__main__"] = module
    sys.argv = [str(script)]
    answer.write_bytes(pickle.dumps(_facts(script, vars(module))))
    vars(module).clear()  # loaders end before the process does
    gc.collect()


def _facts(script: Path, variables: dict[str, Any]) -> Facts:
    failure = None
    printed = _printed()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            exec(compile(script.read_bytes(), str(script), "exec"), variables)
        except Exception as error:
            failure = type(error).__name__
    return {
        "printed": printed,
        "failure": failure,
        "variables": {name: describe(value) for name, value in variables.items() if _is_compared(name, value)},
        "warnings": _texts(caught),
        "generators": (torch.rand(()).item(), random.random(), float(np.random.random())),
    }


def _printed() -> list[object]:
    """Return a list that records everything this process prints; what workers print is only in the output."""
    printed: list[object] = []
    usual, own = builtins.print, os.getpid()

    def print_and_note(*values: Any, **options: Any) -> None:
        usual(*values, **options)
        if os.getpid() == own and options.get("file") is None:  # not to stderr, as torch's threads do
            printed.append(tuple(_without_times(v) if isinstance(v, str) else describe(v) for v in values))

    builtins.print = print_and_note
    return printed


def _is_compared(name: str, value: object) -> bool:
    return not name.startswith("__") and _is_data(value)


def _is_data(value: object) -> bool:
    """Return whether this is data rather than a loader, dataset, function or module."""
    if isinstance(value, dict):
        return all(map(_is_data, value.values()))
    if isinstance(value, (list, tuple, set)):
        return all(map(_is_data, value))
    return value is None or isinstance(value, (numbers.Number, str, bytes, torch.Tensor, np.ndarray, np.generic))


def _texts(caught: list[warnings.WarningMessage]) -> list[tuple[str, str]]:
    """Return the warnings, each once, without those that feedline adds on purpose."""
    found = {
        (each.category.__name__, normalise(str(each.message))): None
        for each in caught
        if not issubclass(each.category, DataWarning)
        and not any(uncompared in str(each.message) for uncompared in UNCOMPARED_WARNINGS)
    }
    return list(found)
