"""torch's own samplers, followed exactly but in blocks instead of one Python integer at a time.

The same random numbers are drawn in the same order and at the same moments as in torch's iterators, so a generator that
is shared with other code ends in the same state. Only exact types are recognised.
Test: tests/frameworks/test_torch_samplers.py
"""

from __future__ import annotations

import base64
import contextlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import RandomSampler, SequentialSampler, SubsetRandomSampler, WeightedRandomSampler

from feedline.errors import BadState
from feedline.system.failures import words


def index_blocks(sampler: Any, origin: dict[str, Any]) -> Iterator[NDArray[np.int64]] | None:
    """Return what a torch sampler yields, in blocks; None if it is not one of torch's and has to be iterated.

    `origin` is what this order begins with. Empty: it is drawn by torch's rules, and noted here with the first block.
    """
    if type(sampler) is RandomSampler:
        return _random(sampler, origin)
    return None


class GeneratorOrigin:
    """The state of a torch generator that an order is drawn from, or the seed if the sampler has none.

    Args:
        generator: the sampler's own.
        seeds: True if a sampler without a generator draws a seed for one; otherwise it draws from torch's default.
    """

    def __init__(self, generator: torch.Generator | None, *, seeds: bool) -> None:
        self._generator = generator
        self.drawn_from = "torch_seed" if seeds and generator is None else "torch_generator"
        """What an order begins with, as a snapshot calls it; None there before it was drawn."""

    def check(self, order: dict[str, Any]) -> None:
        """Refuse what a snapshot says if an order cannot be drawn again from that, or the next one not be begun."""
        if "consumed" not in order:  # the epoch was gone through
            if self._generator is not None:
                _found(order, "torch_generator_next")
        elif order["consumed"] > 0 or self.drawn_from not in order:
            _found(self.found_in(order), self.drawn_from)
        for name in ("torch_generator", "torch_generator_next"):
            if order.get(name) is not None:
                _unpack(_like(self._generator), order[name])

    def begin(self, order: dict[str, Any]) -> None:
        """Restore what `after` told. Whatever else draws from the generator then finds it where it was, too."""
        if self._generator is not None and order.get("torch_generator_next") is not None:
            _unpack(self._generator, order["torch_generator_next"])

    def found_in(self, order: dict[str, Any]) -> dict[str, Any]:
        """Return what the order began with, as `order` has it."""
        return {name: order[name] for name in ("torch_seed", "torch_generator") if order.get(name) is not None}

    def after(self) -> dict[str, Any]:
        """Return the state of the generator as it is now, at the end of an epoch."""
        return {} if self._generator is None else {"torch_generator_next": _packed(self._generator)}


class SeedSource:
    """What a loader without a seed draws from: its own generator, or torch's default one.

    A state that was taken at the end of an epoch says where that was. The loader's generator is put there. torch's
    default one belongs to the whole program, which may have put it there as well, or have other plans: then a copy
    goes on from there, and takes its place while the loader draws.
    """

    def __init__(self) -> None:
        self._copy: torch.Tensor | None = None

    def after(self, generator: torch.Generator | None) -> dict[str, Any]:
        """Return where the next epoch is drawn from."""
        with self.drawing():
            return {"torch_seeds_next": _packed(generator or torch.default_generator)}

    def check(self, generator: torch.Generator | None, order: Mapping[str, Any]) -> None:
        """Refuse what a snapshot says if no generator can be put there."""
        if order.get("torch_seeds_next") is not None:
            _unpack(_like(generator), order["torch_seeds_next"])

    def begin(self, generator: torch.Generator | None, order: Mapping[str, Any]) -> None:
        """Go on from where `after` told."""
        self._copy = None
        text = order.get("torch_seeds_next")
        if text is None:
            return
        if generator is not None:
            _unpack(generator, text)
        elif text != _packed(torch.default_generator):
            found = torch.Generator()
            _unpack(found, text)
            self._copy = found.get_state()

    @contextlib.contextmanager
    def drawing(self) -> Iterator[None]:
        """Let torch's default generator be where the state says, while the beginning of an epoch is drawn."""
        if self._copy is None:
            yield
            return
        default = torch.default_generator
        now = default.get_state()
        default.set_state(self._copy)
        try:
            yield
        finally:
            self._copy = default.get_state()
            default.set_state(now)


def origin_of(sampler: Any) -> GeneratorOrigin | None:
    """Return what the order of one of torch's samplers begins with; None if that is not known."""
    if type(sampler) in (RandomSampler, SubsetRandomSampler, WeightedRandomSampler):
        return GeneratorOrigin(sampler.generator, seeds=type(sampler) is RandomSampler)
    return None


def remembering(sampler: Any, items: Iterable[Any], origin: dict[str, Any]) -> Iterator[Any]:
    """Yield `items`, whose order a sampler draws from its generator when the first is asked for, as torch's do."""
    if sampler.generator is not None:
        _begin(sampler.generator, origin)
        yield from items
        return
    default = torch.default_generator
    now = default.get_state()
    is_known = bool(origin)
    _begin(default, origin)
    source = iter(items)
    first = next(source, _NOTHING)
    if is_known:
        default.set_state(now)  # it was drawn once, in the run that saved the state
    if first is not _NOTHING:
        yield first
    yield from source


_NOTHING = object()


def is_sequential(sampler: Any) -> bool:
    """True for torch's own sequential sampler."""
    return type(sampler) is SequentialSampler


def _random(sampler: RandomSampler, origin: dict[str, Any]) -> Iterator[NDArray[np.int64]]:
    count = len(sampler.data_source)
    generator = _begin(sampler.generator, origin)
    wanted = sampler.num_samples
    if sampler.replacement:
        for size in [32] * (wanted // 32) + [wanted % 32]:
            yield torch.randint(high=count, size=(size,), dtype=torch.int64, generator=generator).numpy()
        return
    for _ in range(wanted // count):
        yield _permutation(count, generator)
    yield _permutation(count, generator)[: wanted % count]


def _begin(generator: torch.Generator | None, origin: dict[str, Any]) -> torch.Generator:
    """Return the generator that an order is drawn from, as it was or is at the beginning."""
    if generator is None:
        if not origin:
            origin["torch_seed"] = int(torch.empty((), dtype=torch.int64).random_().item())
        return torch.Generator().manual_seed(_found(origin, "torch_seed"))
    if not origin:
        origin["torch_generator"] = _packed(generator)
    else:
        _unpack(generator, _found(origin, "torch_generator"))
    return generator


def _packed(generator: torch.Generator) -> str:
    return base64.b64encode(generator.get_state().numpy().tobytes()).decode()


def _unpack(generator: torch.Generator, text: str) -> None:
    try:
        generator.set_state(torch.frombuffer(bytearray(base64.b64decode(text)), dtype=torch.uint8))
    except (RuntimeError, TypeError, ValueError) as exc:
        raise BadState(
            f"The state is damaged: {text!r:.100} is not the state of a generator of torch: {words(exc)}. Load one "
            "that is whole, or begin the epoch anew."
        ) from exc


def _like(generator: torch.Generator | None) -> torch.Generator:
    """Return another generator of the same device, to try something with."""
    return torch.Generator() if generator is None else torch.Generator(generator.device)


def _found(origin: dict[str, Any], name: str) -> Any:
    if origin.get(name) is None:
        raise BadState(
            f"The state does not say how the order was drawn: it has {sorted(origin)}, and this loader's sampler needs "
            f"{name!r}. Give the sampler what it had when the state was saved, a generator or none."
        )
    return origin[name]


def _permutation(count: int, generator: torch.Generator) -> NDArray[np.int64]:
    return torch.randperm(count, generator=generator).numpy()
