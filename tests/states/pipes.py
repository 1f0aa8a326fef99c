"""Pipes: every operator, over map-style and iterable datasets."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from feedline import Loader, pipe
from feedline.datasets import TarDataset
from feedline.pipes import Pipe
from tests.states.data import Counting, document, doubled, odd, twice
from tests.states.recipe import Recipe


def _stream() -> Pipe:
    """Return a pipe whose length is unknown, so that the operators after it are streams."""
    return pipe(range(80)).filter(odd)


def _part(start: int) -> Pipe:
    return pipe(range(start, start + 40)).filter(odd)


PIPES: dict[str, Callable[[], Pipe]] = {
    "balance": lambda: _stream().balance(abs, 3, window=4),
    "batch": lambda: _stream().batch(3),
    "concat": lambda: _part(0).concat(_part(100)),
    "enumerate": lambda: _stream().enumerate(),
    "filter": _stream,
    "flat_map": lambda: _stream().flat_map(twice),
    "interleave": lambda: _part(0).interleave(_part(100), _part(200)),
    "map": lambda: _stream().map(doubled),
    "mix": lambda: _part(0).mix(_part(100), weights=[2, 1], seed=3),
    "pack": lambda: _stream().map(document).pack(16, window=8),
    "repeat": lambda: _stream().repeat(2),
    "shuffle": lambda: pipe(range(40)).shuffle(seed=3).map(doubled),
    "skip": lambda: _stream().skip(5),
    "slice": lambda: _stream().slice(3, 33, 2),
    "take": lambda: _stream().take(25),
    "unbatch": lambda: _stream().batch(3).unbatch(),
    "window_shuffle": lambda: _stream().window_shuffle(7, seed=3),
    "zip": lambda: _part(0).zip(_part(100)),
    # Pipes with several operators, and over datasets that are streams themselves.
    "long": lambda: _stream().map(doubled).window_shuffle(8, seed=1).batch(2).repeat(2).enumerate(),
    "mixed by tokens": lambda: _part(0).map(document).mix(_part(100).map(document), seed=3, measure=_tokens).pack(16),
    "iterable": lambda: pipe(Counting(40)).window_shuffle(6, seed=2),
    "tar": lambda: pipe(TarDataset("shard-*.tar", "txt").stream(shuffle=True, buffer=6, seed=3)).batch(2),
}
"""Every operator has its own recipe, which a test checks."""


def _tokens(sample: dict[str, list[int]]) -> int:
    return len(sample["tokens"])


def _loader(make: Callable[[], Pipe], workers: int = 0) -> Loader:
    made = make()
    if make is PIPES["pack"] or make is PIPES["mixed by tokens"]:
        return Loader(made, 2, workers=workers, engine="thread" if workers else "inline", seed=3)
    return Loader(made, None, workers=workers, engine="thread" if workers else "inline", seed=3)


RECIPES: dict[str, Recipe] = {
    **{name: Recipe(partial(_loader, make), after=3) for name, make in PIPES.items()},
    "end of an epoch": Recipe(partial(_loader, PIPES["window_shuffle"]), after=None),
    "two workers": Recipe(partial(_loader, PIPES["long"], 2), after=5),
    "two workers then three": Recipe(
        partial(_loader, PIPES["long"], 2), after=5, then=partial(_loader, PIPES["long"], 3)
    ),
    "tar, two workers": Recipe(partial(_loader, PIPES["tar"], 2), after=3),
    "two ranks then three": Recipe(partial(_loader, PIPES["long"]), ranks=2, then_ranks=3),
}
