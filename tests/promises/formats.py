"""File formats: the keys of states and recordings, and the types of their values."""

from __future__ import annotations

import importlib.util
import json
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import feedline
from feedline.insight.recording import Recording
from feedline.insight.stats import SlowSample, WorkerMemory
from tests.states import corpus
from tests.states.data import Failing

# Any, throughout: values of JSON.
KINDS = (
    ("samplers", "shuffle"),
    ("samplers", "LengthBucketBatchSampler"),
    ("samplers", "WeightedRandomSampler"),
    ("samplers", "foreign"),
    ("samplers", "end of an epoch"),
    ("samplers", "virtual epochs"),
    ("samplers", "skipped samples"),
    ("samplers", "stateful dataset"),
    ("streams", "plain"),
    ("streams", "tar"),
    ("streams", "tar, three ranks then two"),
    ("streams", "parquet"),
    ("streams", "lines"),
    ("streams", "rows of a query"),
    ("streams", "records"),
    ("streams", "messages"),
    ("streams", "tokenized lines"),
    ("streams", "mixture of streams"),
    *(("pipes", name) for name in ("batch", "concat", "interleave", "mix", "pack", "repeat", "slice")),
    *(("pipes", name) for name in ("window_shuffle", "zip", "tar")),
)
"""Recipes whose states together have all keys; none starts workers."""
USERS = (".dataset.count", ".dataset.at", ".datasets[].dataset.at")
"""Suffixes of keys that belong to the datasets of recipes, not to feedline."""

MACHINE = ("system.", "settings.memory_limit", "counters.arena_bytes")
"""Values that some machines do not have."""


def lines(folder: Path) -> tuple[list[str], list[str]]:
    """Return the list, and the kinds of states that need a package that is not installed."""
    found: dict[str, set[str]] = defaultdict(set)
    lacking = []
    with corpus.files():
        for family, name in KINDS:
            recipe = corpus.FAMILIES[family][name]
            if corpus.missing(recipe):
                lacking.append(f"state of {family}, {name}")
                continue
            for key, kind in _walk(recipe.save()[0]):
                if key.endswith(USERS):
                    continue
                is_common = key.count(".") == 0 and "[" not in key
                found[f"state {key}" if is_common else f"state of {family}, {name}: {key}"].add(kind)
    for key, kind in _walk(_recording(folder)):
        if kind in ("number", "null") and key.startswith(MACHINE):
            kind = "number or null"
        found[f"recording {key}"].add(kind)
    if importlib.util.find_spec("torch") is None:
        lacking.append("recording environment.torch")
    return sorted(f"{key}: {' or '.join(sorted(kinds))}" for key, kinds in found.items()), lacking


def _recording(folder: Path) -> Any:
    loader = feedline.Loader(Failing(), 5, on_error="skip", workers=1, engine="thread")
    with feedline.record(loader, folder / "run.json"):
        list(loader)
    loader.close()
    recording = Recording.load(folder / "run.json")
    # Keys that are random or rare.
    recording.slow_samples, recording.memory = [SlowSample(3, 0.5, 0)], [WorkerMemory(0, 1 << 20, 0)]
    recording.stages = {"decode": [[0, 5000]]}
    recording.save(folder / "run.json")
    return json.loads((folder / "run.json").read_text("utf-8").splitlines()[1])


def _walk(value: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """Yield each key, with `[]` for the elements of a list, and the type of its value."""
    if isinstance(value, dict):
        if key:
            yield key, "object"
        for name, one in value.items():
            yield from _walk(one, f"{key}.{name}" if key else name)
    elif isinstance(value, list):
        yield key, "list"
        for one in value:
            yield from _walk(one, f"{key}[]")
    else:
        yield key, _TYPES[type(value)]


_TYPES = {bool: "boolean", int: "number", float: "number", str: "string", type(None): "null"}
