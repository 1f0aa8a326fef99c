"""Where an exception came from, and the notes added to it."""

from __future__ import annotations

import functools
import signal
from typing import Any

import pytest

from feedline.system.failures import add_note, is_interrupt, signal_behind, stage_of


def tear(sample: Any) -> Any:
    raise ValueError("torn")


class Tear:
    def __call__(self, sample: Any) -> Any:
        return tear(sample)

    def method(self, sample: Any) -> Any:
        return tear(sample)


class Dataset:
    """Reads a sample, then transforms it."""

    def __init__(self, *, readable: bool = True, **transforms: Any) -> None:
        self.__dict__.update(transforms)
        self.transforms_to_call = list(transforms.values())
        self.readable = readable

    def __getitem__(self, index: int) -> Any:
        sample = index if self.readable else tear(index)
        for transform in self.transforms_to_call:
            sample = transform(sample)
        return sample


class Wrapper:
    """Like `torch.utils.data.Subset`."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __getitem__(self, index: int) -> Any:
        return self.dataset[index]


class Lazy:
    """Makes its attributes when they are first asked for."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise AssertionError(f"{name} was asked for")

    def __getitem__(self, index: int) -> Any:
        return tear(index)


@pytest.mark.parametrize(
    ("dataset", "stage"),
    [
        (Dataset(transform=tear), "transform"),
        (Dataset(target_transform=Tear()), "transform"),
        (Dataset(transform=Tear().method), "transform"),
        (Dataset(target_transform=functools.partial(Tear())), "transform"),
        (Wrapper(Wrapper(Dataset(transform=Tear()))), "transform"),
        (Dataset(transform=str, readable=False), "fetch"),
        (Dataset(readable=False), "fetch"),
        (Lazy(), "fetch"),
    ],
)
def test_the_stage_in_which_a_sample_failed(dataset: Any, stage: str) -> None:
    with pytest.raises(ValueError, match="torn") as caught:
        dataset[0]
    assert stage_of(caught.value, dataset) == stage


# -- notes ---


def test_notes_are_kept_on_python_3_10() -> None:
    class Old:
        """An exception without `add_note`, as in Python 3.10."""

    error: Any = Old()
    add_note(error, "first")
    add_note(error, "second")
    assert error.__notes__ == ["first", "second"]


# -- signal handlers ---


class Late(Exception):
    """Raised by a signal handler."""


def _raise(number: int, frame: Any) -> None:
    raise Late


class Watch:
    """Other kinds of handlers."""

    def method(self, number: int, frame: Any) -> None:
        raise Late

    def __call__(self, number: int, frame: Any) -> None:
        raise Late


@pytest.mark.parametrize(
    "handler",
    [_raise, Watch().method, Watch(), functools.partial(_raise), lambda number, frame: _raise(number, frame)],
    ids=["function", "method", "object", "partial", "lambda"],
)
def test_an_exception_of_a_signal_handler_is_an_interrupt(handler: Any) -> None:
    before = signal.signal(signal.SIGUSR1, handler)
    try:
        with pytest.raises(Late) as caught:
            signal.raise_signal(signal.SIGUSR1)
        assert signal_behind(caught.value) == signal.SIGUSR1
        assert is_interrupt(caught.value)
        assert not is_interrupt(Late())
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert not is_interrupt(caught.value), "exceptions of a handler that was installed temporarily belong to its owner"


def test_ctrl_c_is_an_interrupt_and_other_exceptions_are_not() -> None:
    assert signal_behind(KeyboardInterrupt()) == signal.SIGINT
    for exc in (SystemExit(1), GeneratorExit(), OSError("x")):
        assert signal_behind(exc) is None
