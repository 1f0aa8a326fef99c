"""torch's own samplers, reproduced exactly, but in blocks instead of one Python integer at a time.

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
from torch._C import _len_torch_function_stack as _mode_count
from torch.utils.data import RandomSampler, SequentialSampler, SubsetRandomSampler, WeightedRandomSampler

from feedline.errors import BadState
from feedline.system.failures import words
from feedline.types import State


def index_blocks(sampler: object, origin: dict[str, object]) -> Iterator[NDArray[np.int64]] | None:
    """Return the indices of a torch sampler in blocks; None if the sampler has to be iterated over.

    `origin` holds the seed or generator state that the order is drawn from. If it is empty, the first block draws one
    by torch's rules and adds it.
    """
    if type(sampler) is RandomSampler:
        return _random(sampler, origin)
    return None


class GeneratorOrigin:
    """The state of a torch generator that an order is drawn from, or the seed if the sampler has no generator.

    Args:
        generator: the sampler's generator.
        seeds: True if a sampler without a generator draws a seed for one; otherwise it draws from torch's default.
    """

    def __init__(self, generator: torch.Generator | None, *, seeds: bool) -> None:
        self.generator = generator
        self.drawn_from = "torch_seed" if seeds and generator is None else "torch_generator"
        """The snapshot's key for this seed or state; its value there is None before the order is drawn."""

    def check(self, order: State) -> None:
        """Raise BadState if the order in a snapshot cannot be drawn again, or the next order cannot start."""
        if "consumed" not in order:  # the epoch was completed
            if self.generator is not None:
                _found(order, "torch_generator_next")
        elif order["consumed"] > 0 or self.drawn_from not in order:
            _found(self.found_in(order), self.drawn_from)
        for name in ("torch_generator", "torch_generator_next"):
            if order.get(name) is not None:
                _unpack(_like(self.generator), order[name])

    def begin(self, order: State) -> None:
        """Restore the state that `after` returned. Other users of the generator then continue from there, too."""
        if self.generator is not None and order.get("torch_generator_next") is not None:
            _unpack(self.generator, order["torch_generator_next"])

    def found_in(self, order: dict[str, object]) -> dict[str, object]:
        """Return the seed or generator state in a snapshot's `order`."""
        return {name: order[name] for name in ("torch_seed", "torch_generator") if order.get(name) is not None}

    def after(self) -> dict[str, object]:
        """Return the state of the generator as it is now, at the end of an epoch."""
        return {} if self.generator is None else {"torch_generator_next": _packed(self.generator)}


class SeedSource:
    """The generator that a loader without a seed draws from: its own, or torch's default.

    A state saved at the end of an epoch contains the state of this generator, and so does one from inside an epoch if
    the order was drawn from torch's default generator. When it is loaded, the loader's own generator is set to it.
    torch's default generator belongs to the whole program, which may have restored it as well, or may use it otherwise.
    If it differs from the saved one, a copy continues from the saved state, and replaces the default generator while
    the loader draws. A resumed epoch itself draws nothing.
    """

    def __init__(self) -> None:
        self._copy: torch.Tensor | None = None

    def after(self, generator: torch.Generator | None) -> dict[str, object]:
        """Return the generator state that the next epoch is drawn from."""
        with self.drawing():
            return {"torch_seeds_next": _packed(generator or torch.default_generator)}

    def check(self, generator: torch.Generator | None, order: Mapping[str, Any]) -> None:
        """Raise BadState if the generator state in a snapshot cannot be restored."""
        if order.get("torch_seeds_next") is not None:
            _unpack(_like(generator), order["torch_seeds_next"])

    def begin(self, generator: torch.Generator | None, order: Mapping[str, Any]) -> None:
        """Continue from the state that `after` returned."""
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

    def drawing(self) -> contextlib.AbstractContextManager[None]:
        """Set torch's default generator to the restored state while the start of an epoch is drawn."""
        return _NOTHING_TO_RESTORE if self._copy is None else self._restored()

    @contextlib.contextmanager
    def _restored(self) -> Iterator[None]:
        default = torch.default_generator
        now = default.get_state()
        assert self._copy is not None
        default.set_state(self._copy)
        try:
            yield
        finally:
            self._copy = default.get_state()
            default.set_state(now)


_NOTHING_TO_RESTORE = contextlib.nullcontext()


def origin_of(sampler: Any) -> GeneratorOrigin | None:
    """Return the origin of the order of one of torch's samplers; None for other samplers."""
    if type(sampler) in (RandomSampler, SubsetRandomSampler, WeightedRandomSampler):
        return GeneratorOrigin(sampler.generator, seeds=type(sampler) is RandomSampler)
    return None


def remembering(sampler: Any, items: Iterable[object], origin: dict[str, object]) -> Iterator[object]:
    """Yield `items`, drawn from the generator state in `origin`; if that is empty, store the current state there.

    The sampler draws the order when the first item is requested, as torch's samplers do.
    """
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
        default.set_state(now)  # the run that saved the state has already drawn from it
    if first is not _NOTHING:
        yield first
    yield from source


_NOTHING = object()


def skipped_by(batch_sampler: Any) -> tuple[Any, int]:
    """Return the batch sampler whose first batches Accelerate skips, and how many; itself and 0 if it skips none.

    The loader starts the order at that batch instead of iterating over the skipped ones. So the remaining batches are
    the same as without skipping, including the random numbers of their samples.
    """
    skips = 0
    while _is_a("SkipBatchSampler", batch_sampler):
        skips += batch_sampler.skip_batches
        batch_sampler = batch_sampler.batch_sampler
    return batch_sampler, skips


def sampler_behind(batch_sampler: Any) -> Any:
    """Return the sampler of a batch sampler that Accelerate splits over the ranks; None for other batch samplers."""
    if not _is_a("BatchSamplerShard", batch_sampler):
        return None
    return getattr(batch_sampler.batch_sampler, "sampler", None)


def _is_a(name: str, batch_sampler: object) -> bool:
    kind = type(batch_sampler)
    return kind.__name__ == name and kind.__module__.startswith("accelerate.")


def is_sequential(sampler: object) -> bool:
    """True for torch's own sequential sampler."""
    return type(sampler) is SequentialSampler


with torch.inference_mode(mode=False):
    _spare = [torch.empty((), dtype=torch.int64, device="cpu")]
"""The tensor that seeds are drawn into, while no thread does so: making one takes as long as drawing the seed."""


def drawn_seed(generator: torch.Generator | None) -> int:
    """Draw a seed as torch's loader and its random sampler do."""
    spare = [] if _mode_count() else _spare  # a default device, which has its own generator, is such a mode
    try:
        place = spare.pop()
    except IndexError:
        return int(torch.empty((), dtype=torch.int64).random_(generator=generator).item())
    try:
        drawn = place.random_() if generator is None else place.random_(generator=generator)  # the first is quicker
        return int(drawn.item())
    finally:
        spare.append(place)


def _random(sampler: RandomSampler, origin: dict[str, object]) -> Iterator[NDArray[np.int64]]:
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


def _begin(generator: torch.Generator | None, origin: dict[str, object]) -> torch.Generator:
    """Return the generator that an order is drawn from, in its state at the start of the order."""
    if generator is None:
        if not origin:
            origin["torch_seed"] = drawn_seed(None)
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
            f"The state is damaged: {text!r:.100} is not the state of a torch generator: {words(exc)}. Load an intact "
            "state, or start the epoch again."
        ) from exc


def _like(generator: torch.Generator | None) -> torch.Generator:
    """Return a new generator on the same device, to try a state on."""
    return torch.Generator() if generator is None else torch.Generator(generator.device)


def _found(origin: dict[str, object], name: str) -> Any:
    if origin.get(name) is None:
        raise BadState(
            f"The state does not fit this loader's sampler: it has {sorted(origin)}, but the sampler needs {name!r}. "
            "Create the sampler as it was when the state was saved, with or without a generator."
        )
    return origin[name]


def _permutation(count: int, generator: torch.Generator) -> NDArray[np.int64]:
    return torch.randperm(count, generator=generator).numpy()
