"""Samplers are instances of torch's classes, whichever was imported first, and work without torch."""

from __future__ import annotations

import inspect
import json
import pickle
import subprocess
import sys
from typing import Any

import pytest

from feedline import samplers
from tests import program_server

torch_data = pytest.importorskip("torch.utils.data")

NAMES = [name for name in samplers.__all__ if hasattr(torch_data, name)]

MAKE = """
from feedline import samplers
def make():
    order = samplers.RandomSampler(range(9), seed=1)
    return {
        "SequentialSampler": samplers.SequentialSampler(range(9)),
        "RandomSampler": order,
        "SubsetRandomSampler": samplers.SubsetRandomSampler(range(9), seed=1),
        "WeightedRandomSampler": samplers.WeightedRandomSampler([1.0] * 9, 9, seed=1),
        "BatchSampler": samplers.BatchSampler(order, 2, False),
        "DistributedSampler": samplers.DistributedSampler(range(9), 2, 1),
    }
def others():
    return {
        "BatchSampler": samplers.BatchSampler(list(range(9)), 2, False),
        "DistributedSampler": samplers.distribute(samplers.InfiniteSampler(range(9)), 0, 2),
    }
"""

IMPORTS = {
    "torch first": "import torch.utils.data\n" + MAKE + "made = [make(), others()]",
    "torch later": MAKE + "assert 'torch' not in sys.modules\nmade = [make(), others()]\nimport torch.utils.data",
    "through a loader": MAKE + "made = [make(), others()]\nfrom feedline import DataLoader\nimport torch.utils.data",
}

ASK = """
answer = [
    (name, isinstance(one, kind), issubclass(type(one), kind), isinstance(one, torch.utils.data.Sampler))
    for group in made for name, one in group.items() for kind in [getattr(torch.utils.data, name)]
]
"""


def ask_interpreter(code: str) -> Any:  # Any: the value that `code` assigns to `answer`, through JSON
    script = f"import json, sys\n{code}\nsys.stdout.write(json.dumps(answer))"
    if code.startswith("import torch"):
        done = program_server.run(script)  # this process has imported torch
    else:
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.slow
@pytest.mark.parametrize(
    "imports",
    [pytest.param(IMPORTS[name], id=name, marks=[pytest.mark.slow] * (name == "through a loader")) for name in IMPORTS],
)
def test_samplers_with_torchs_names_are_instances_of_torchs_classes(imports: str) -> None:
    found = ask_interpreter(imports + ASK)
    assert {name for name, *_ in found} == set(NAMES)
    assert all(all(answers) for _, *answers in found), found


@pytest.mark.slow
def test_samplers_do_not_import_torch() -> None:
    assert not ask_interpreter(MAKE + "made = [list(one) for one in make().values()]\nanswer = 'torch' in sys.modules")


def ask_here() -> dict[str, Any]:
    names: dict[str, Any] = {}
    exec(MAKE, names)
    made: dict[str, Any] = names["make"]()
    return made


@pytest.mark.slow
@pytest.mark.parametrize("imports", ["", "import torch\n"], ids=["without torch", "with torch"])
def test_pickles_work_with_and_without_torch(imports: str) -> None:
    here = ask_here()
    code = f"{imports}import pickle\nmade = pickle.loads({pickle.dumps(here)!r})\n"
    found = ask_interpreter(code + "answer = [{name: list(one) for name, one in made.items()}, 'torch' in sys.modules]")
    assert found == [{name: list(one) for name, one in here.items()}, bool(imports)]


@pytest.mark.parametrize("name", NAMES)
def test_constructors_accept_torchs_arguments(name: str) -> None:
    theirs = list(inspect.signature(getattr(torch_data, name)).parameters)
    assert list(inspect.signature(getattr(samplers, name).__init__).parameters)[1 : len(theirs) + 1] == theirs
