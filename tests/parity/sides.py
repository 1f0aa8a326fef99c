"""The two loaders under comparison, and the comparison.

A test writes its code once, as a function of a `Side`: `side.loader(dataset, ...)` creates torch's loader on one side
and feedline's on the other. `@same` makes such a function a test that both sides do the same. torch's observation is
cached per test and worker count, so that it is made once for all of feedline's engines.
"""

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch.utils.data

import feedline
from tests.parity.observation import Failure, Observation, observe

Code = Callable[["Side"], object]


@dataclass(frozen=True)
class Side:
    """One of the two loaders, and its number of workers if the test does not say."""

    kind: Any  # a class of loaders; Any, so that a test may call it with wrong arguments
    workers: int
    options: dict[str, object] = field(default_factory=dict)
    """Options that only this side's constructor accepts."""

    def loader(self, *args: Any, **options: Any) -> Any:  # Any: torch's arguments, and the loader
        """Create the loader with torch's arguments; the number of workers depends on the engine unless given."""
        if len(args) < 6:
            options.setdefault("num_workers", self.workers)
        return self.kind(*args, **self.options, **options)

    @property
    def is_feedline(self) -> bool:
        return self.kind is not torch.utils.data.DataLoader


@dataclass(frozen=True)
class Parity:
    """Runs code on both sides and compares."""

    feedline: Side
    key: tuple[object, ...]
    """Identifies the test, without the engine."""
    kept: dict[tuple[object, ...], Observation] = field(repr=False)

    @property
    def workers(self) -> int:
        return self.feedline.workers

    @property
    def has_own_generators(self) -> bool:
        """Whether workers have their own global generators; threads share the caller's."""
        return self.feedline.options.get("engine") != "thread"

    def both(self, code: Code) -> tuple[Observation, Observation]:
        """Return torch's observation of `code` and feedline's."""
        key = (*self.key, code.__qualname__, self.workers)
        if key not in self.kept:
            torch_side = Side(torch.utils.data.DataLoader, self.workers)
            self.kept[key] = observe(lambda: code(torch_side))
        return self.kept[key], observe(lambda: code(self.feedline))

    def same(self, code: Code, *, generators: bool = True) -> Observation:
        """Assert that both sides deliver the same, warn the same and draw the same from the caller's generators.

        Returns feedline's observation.
        """
        expected, actual = self.both(code)
        assert expected.failure is None, f"torch's loader failed:\n{expected.failure.report}"
        assert actual.failure is None, f"feedline failed where torch's loader does not:\n{actual.failure.report}"
        assert actual.value == expected.value
        assert actual.warnings == expected.warnings
        if generators:
            assert actual.generators == expected.generators, "the caller's global generators drew different amounts"
        return actual

    def same_refusal(self, code: Code) -> Failure:
        """Assert that both sides raise torch's type (or a subclass of it) with torch's wording."""
        expected, actual = self.both(code)
        assert expected.failure is not None, f"torch's loader accepts this and gives {expected.value}"
        assert actual.failure is not None, f"feedline accepts what torch refuses with: {expected.failure.text}"
        assert issubclass(actual.failure.kind, expected.failure.kind), actual.failure.report
        assert expected.failure.text in actual.failure.text
        assert actual.warnings == expected.warnings
        return actual.failure

    def same_failure(self, code: Code, text: str) -> Failure:
        """Assert that both sides raise exactly the same type, and that `text` is in both messages."""
        expected, actual = self.both(code)
        assert expected.failure is not None, f"torch's loader does not fail but gives {expected.value}"
        assert actual.failure is not None, f"feedline does not fail but gives {actual.value}"
        assert actual.failure.kind is expected.failure.kind, actual.failure.report
        assert text in expected.failure.text
        assert text in actual.failure.text
        # A worker that fails to start is restarted before its exception is raised, with a warning to the user.
        assert tuple(one for one in actual.warnings if one[0] != "WorkerWarning") == expected.warnings
        return actual.failure


Test = Callable[..., None]


def _test_with(fixture: str) -> Callable[[Callable[..., object]], Test]:
    """Return a decorator that makes code, a function of a side and other fixtures and parameters, a test."""

    def made(code: Callable[..., object]) -> Test:
        @functools.wraps(code)
        def test(**given: Any) -> None:  # Any: a `Parity`, and what the code takes
            parity: Parity = given.pop(fixture)
            parity.same(lambda side: code(side, **given))

        _, *others = inspect.signature(code).parameters
        names = (inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in (fixture, *others))
        test.__signature__ = inspect.Signature(list(names))  # type: ignore[attr-defined]  # pytest reads it
        return test

    return made


same = _test_with("parity")
same_with_workers = _test_with("worker_parity")
same_in_processes = _test_with("process_parity")
same_inline = _test_with("inline_parity")
same_as_it_is = _test_with("plain_parity")


def feedline_side(engine: str | None, workers: int) -> Side:
    """feedline's loader on one engine; `None` leaves the choice to the loader."""
    return Side(feedline.DataLoader, workers, {} if engine is None else {"engine": engine})
