"""What `import feedline` offers, loads and costs, in new interpreters."""

from __future__ import annotations

import ast
import importlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

INIT = Path(__file__).resolve().parents[1] / "src" / "feedline" / "__init__.py"
IMPORT_LIMIT_MS = 200
HEAVY = ["torch", "ray", "PIL", "cv2", "pandas", "fastapi", "flask"]


def ask_interpreter(code: str) -> Any:  # Any: the value that `code` assigns to `answer`, through JSON
    script = f"import json, sys\n{code}\nsys.stdout.write(json.dumps(answer))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


OF_THE_IMPORT = f"""
import types, feedline
def submodule(value): return isinstance(value, types.ModuleType) and value.__name__.startswith("feedline.")
answer = {{"heavy": [name for name in {HEAVY} if name in sys.modules], "listed": list(feedline.__all__)}}
public = [name for name in dir(feedline) if not name.startswith("_")]
answer["reachable"] = [name for name in public if name in feedline.__all__ or not submodule(getattr(feedline, name))]
answer["unknown"] = hasattr(feedline, "no_such_name")
feedline.Loader
answer["neutral"] = "torch" in sys.modules
"""
OF_THE_DROP_IN = """
import feedline
def loaded(): return sorted(name for name in sys.modules if "feedline" in name)
feedline.DataLoader
answer = {"drop-in": loaded()}
list(feedline.DataLoader(list(range(8)), 2))
answer["inline"] = loaded()
list(feedline.DataLoader(list(range(8)), 2, num_workers=2))
answer["workers"] = loaded()
answer["compiler"] = "torch._dynamo" in sys.modules
answer["unresolved"] = [name for name in feedline.__all__ if getattr(feedline, name, None) is None]
"""
"""Code for one interpreter: each part loads more than the one before."""


@pytest.fixture(scope="module")
def answers() -> dict[str, Any]:
    return {**ask_interpreter(OF_THE_IMPORT), **ask_interpreter(OF_THE_DROP_IN)}


def test_all_is_sorted_and_has_no_duplicates(answers: dict[str, Any]) -> None:
    assert answers["listed"] == sorted(set(answers["listed"]))


def test_all_lists_exactly_the_reachable_names(answers: dict[str, Any]) -> None:
    # A submodule becomes an attribute when anything imports it, so it counts only if it is listed.
    reachable, listed = set(answers["reachable"]), set(answers["listed"]) - {"__version__"}
    assert reachable == listed, (
        f"only listed: {sorted(listed - reachable)}; only reachable: {sorted(reachable - listed)}"
    )


def test_every_listed_name_resolves(answers: dict[str, Any]) -> None:
    assert answers["unresolved"] == []


PACKAGES = (
    "feedline",
    *(
        f"feedline.{name}"
        for name in (
            "abc",
            "audio",
            "collate",
            "datasets",
            "errors",
            "faults",
            "images",
            "pipes",
            "samplers",
            "schedulers",
            "simulation",
            "testing",
            "text",
            "text.packing",
            "video",
        )
    ),
)


@pytest.mark.parametrize("package", PACKAGES)
def test_completion_offers_the_public_names_alone(package: str) -> None:
    module = importlib.import_module(package)
    assert dir(module) == sorted(module.__all__)


def test_type_checkers_see_the_same_names(answers: dict[str, Any]) -> None:
    # The names are resolved when first used, so type checkers read them from a block that never runs.
    tree = ast.parse(INIT.read_text(encoding="utf-8"))
    (block,) = (node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")
    seen = {
        alias.asname or alias.name for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names
    }
    assert seen == set(answers["listed"]) - {"__version__"}


def test_unknown_name_is_an_attribute_error(answers: dict[str, Any]) -> None:
    assert answers["unknown"] is False


def test_import_loads_nothing_heavy(answers: dict[str, Any]) -> None:
    assert answers["heavy"] == []


def test_neutral_loader_needs_no_torch(answers: dict[str, Any]) -> None:
    assert not answers["neutral"]


def parts_in(loaded: list[str], *parts: str) -> list[str]:
    return [name for name in loaded if name.startswith(tuple(f"feedline.{part}" for part in parts))]


def test_the_class_imports_nothing_that_loaders_are_made_of(answers: dict[str, Any]) -> None:
    """A spawned worker imports the program, and with it the class, but makes no loader."""
    loaded = answers["drop-in"]
    assert not parts_in(loaded, "datasets", "delivery.machine", "device", "images", "insight", "memory", "order")
    assert not parts_in(
        loaded, "frameworks.torch.", "samplers", "simulation", "tools", "workers.fetch", "workers.runner"
    )
    assert len(loaded) < 55, loaded  # 47 when this was written


def test_a_loader_without_workers_loads_no_engine(answers: dict[str, Any]) -> None:
    assert not parts_in(
        answers["inline"], "workers.portable", "workers.processes", "workers.ray.cluster", "workers.threads"
    )
    assert len(answers["inline"]) < 90, answers["inline"]  # 85


def test_a_loader_with_workers_loads_no_optional_part(answers: dict[str, Any]) -> None:
    loaded = answers["workers"]
    assert not parts_in(loaded, "datasets", "images", "loader.live", "simulation", "testing", "tools")
    assert not parts_in(loaded, "workers.portable", "workers.ray.engine", "workers.threads")
    assert len(loaded) < 215, loaded  # 200


def test_a_loader_does_not_load_torchs_compiler(answers: dict[str, Any]) -> None:
    """It takes longer than torch itself."""
    assert not answers["compiler"]


@pytest.mark.slow
def test_import_is_fast() -> None:
    # Without NumPy, which nearly every user imports anyway. The smallest of several runs counts, as other programs on
    # the machine only make it slower.
    code = """
import time, numpy
begin = time.process_time()
import feedline
answer = (time.process_time() - begin) * 1000
"""
    ask_interpreter(code)  # writes the bytecode, which an installed package has
    elapsed_ms = min(ask_interpreter(code) for _ in range(5))
    assert elapsed_ms < IMPORT_LIMIT_MS
