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
    """Reads a sample, then transforms it with the attribute `name`."""

    def __init__(self, name: str = "transform", transform: Any = None, *, readable: bool = True) -> None:
        self.name = name
        self.readable = readable
        setattr(self, name, transform)

    def __getitem__(self, index: int) -> Any:
        sample = self.read(index)
        transform = getattr(self, self.name)
        return sample if transform is None else transform(sample)

    def read(self, index: int) -> Any:
        return index if self.readable else tear(index)


class Wrapper:
    """Like `torch.utils.data.Subset`."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __getitem__(self, index: int) -> Any:
        return self.dataset[index]


def stage(dataset: Any) -> str:
    """Return the stage in which requesting a sample fails."""
    with pytest.raises(ValueError, match="torn") as caught:
        dataset[0]
    return stage_of(caught.value, dataset)


TRANSFORMS: dict[str, Any] = {
    "function": tear,
    "object": Tear(),
    "method": Tear().method,
    "partial of an object": functools.partial(Tear()),
}


@pytest.mark.parametrize("transform", TRANSFORMS.values(), ids=TRANSFORMS)
def test_a_failing_transform_is_the_transform_stage(transform: Any) -> None:
    assert stage(Dataset("transform", transform)) == "transform"
    assert stage(Dataset("target_transform", transform)) == "transform"


def test_a_failing_read_is_the_fetch_stage() -> None:
    assert stage(Dataset(transform=str, readable=False)) == "fetch"
    assert stage(Dataset(readable=False)) == "fetch"


def test_the_transform_of_a_nested_dataset_is_recognised() -> None:
    assert stage(Wrapper(Wrapper(Dataset(transform=Tear())))) == "transform"


def test_getattr_of_the_dataset_is_not_called() -> None:
    class Lazy:
        def __getattr__(self, name: str) -> Any:
            if name.startswith("__"):
                raise AttributeError(name)
            raise AssertionError(f"{name} was asked for")

        def __getitem__(self, index: int) -> Any:
            raise ValueError("torn")

    assert stage(Lazy()) == "fetch"


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
