"""What `import feedline` offers, loads and costs; each answer comes from an interpreter of its own."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

INIT = Path(__file__).resolve().parents[1] / "src" / "feedline" / "__init__.py"
IMPORT_LIMIT_MS = 200
HEAVY = ["torch", "ray", "rich", "PIL", "cv2", "pandas", "fastapi", "flask"]


def ask_interpreter(code: str) -> Any:  # whatever `code` assigned to `answer`, through JSON
    script = f"import json, sys\n{code}\nsys.stdout.write(json.dumps(answer))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_all_is_sorted_and_without_repeats() -> None:
    names = ask_interpreter("import feedline; answer = list(feedline.__all__)")
    assert names == sorted(set(names))


def test_all_is_what_is_reachable() -> None:
    # A submodule becomes an attribute when anything imports it, so it only counts when it is listed.
    code = """
import types, feedline
submodule = lambda value: isinstance(value, types.ModuleType) and value.__name__.startswith("feedline.")
public = [name for name in dir(feedline) if not name.startswith("_")]
answer = [name for name in public if name in feedline.__all__ or not submodule(getattr(feedline, name))]
"""
    reachable = set(ask_interpreter(code))
    listed = set(ask_interpreter("import feedline; answer = list(feedline.__all__)")) - {"__version__"}
    assert reachable == listed, (
        f"only listed: {sorted(listed - reachable)}; only reachable: {sorted(reachable - listed)}"
    )


def test_every_listed_name_resolves() -> None:
    code = "import feedline; answer = [name for name in feedline.__all__ if getattr(feedline, name, None) is None]"
    assert ask_interpreter(code) == []


def test_type_checkers_see_the_same_names() -> None:
    # The names are resolved when first used, so type checkers read them from a block that never runs.
    tree = ast.parse(INIT.read_text(encoding="utf-8"))
    (block,) = (node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")
    seen = {
        alias.asname or alias.name for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names
    }
    listed = set(ask_interpreter("import feedline; answer = list(feedline.__all__)"))
    assert seen == listed - {"__version__"}


def test_unknown_name_is_an_attribute_error() -> None:
    assert ask_interpreter("import feedline; answer = hasattr(feedline, 'no_such_name')") is False


def test_import_loads_nothing_heavy() -> None:
    loaded = ask_interpreter(f"import feedline; answer = [name for name in {HEAVY} if name in sys.modules]")
    assert loaded == []


def test_neutral_loader_needs_no_torch() -> None:
    loaded = ask_interpreter("import feedline; feedline.Loader; answer = 'torch' in sys.modules")
    assert not loaded


def test_the_drop_in_loads_only_what_every_loader_needs() -> None:
    """No engine, source, decoder or tool: these are imported when a loader is made, iterated over or given one."""
    code = "import feedline; feedline.DataLoader; answer = sorted(name for name in sys.modules if 'feedline' in name)"
    loaded = ask_interpreter(code)
    assert len(loaded) < 120
    wings = ("datasets", "images", "insight", "delivery.machine", "simulation", "tools", "workers.processes")
    assert not [name for name in loaded if name.startswith(tuple(f"feedline.{wing}" for wing in wings))]


def test_a_loader_with_workers_loads_no_optional_part() -> None:
    code = (
        "import feedline; list(feedline.DataLoader(list(range(8)), 2, num_workers=2)); "
        "answer = sorted(name for name in sys.modules if 'feedline' in name)"
    )
    optional = ("datasets", "images", "simulation", "tools", "workers.ray.engine", "workers.threads", "testing")
    loaded = ask_interpreter(code)
    assert not [name for name in loaded if name.startswith(tuple(f"feedline.{part}" for part in optional))]


@pytest.mark.slow
def test_import_is_quick() -> None:
    # NumPy, which nearly every user has loaded anyway, is left out. The smallest of several runs is the figure:
    # other programs on the machine only ever add to it.
    code = """
import time, numpy
begin = time.process_time()
import feedline
answer = (time.process_time() - begin) * 1000
"""
    ask_interpreter(code)  # writes the byte code, which an installed package has
    elapsed_ms = min(ask_interpreter(code) for _ in range(5))
    assert elapsed_ms < IMPORT_LIMIT_MS
