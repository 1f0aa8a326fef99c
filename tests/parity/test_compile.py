"""`torch.compile` around a function that loops over a loader: the loader runs as ordinary Python, untraced."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.parity import datasets
from tests.parity.sides import Parity, Side

pytestmark = [
    pytest.mark.slow,  # importing the compiler takes seconds
    pytest.mark.skipif(
        not hasattr(torch._C._dynamo.eval_frame, "set_code_exec_strategy"), reason="needs torch 2.7 or later"
    ),
    pytest.mark.workers(1),
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated"),
]

KINDS: dict[str, Callable[[], Any]] = {
    "dicts": lambda: [{"x": torch.tensor(float(index))} for index in range(6)],
    "a stream": lambda: datasets.Sharded(6),
}


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    torch._dynamo.reset()
    return torch.compile(function, backend="eager")


def total_of(loader: Any) -> torch.Tensor:
    total = torch.zeros(())
    for number, batch in enumerate(loader):
        value = batch["x"] if isinstance(batch, dict) else batch
        total = total + (number + 1) * value.float().sum()
    return total


def assert_same(parity: Parity, code: Callable[[Side], object]) -> None:
    """torch's side is not compiled: once CUDA is in use, a worker that torch's loader forks cannot trace anything."""
    expected, actual = parity.both(code)
    assert expected.failure is None, expected.failure.report
    assert actual.failure is None, actual.failure.report
    assert actual.value == expected.value
    assert not [text for _, text in actual.warnings if "Dynamo" in text]


@pytest.mark.parametrize("kind", KINDS)
def test_a_loop_over_a_loader(parity: Parity, kind: str) -> None:
    def code(side: Side) -> object:
        loader = side.loader(KINDS[kind](), batch_size=2)
        loop = compiled(total_of) if side.is_feedline else total_of
        return loop(loader), loop(loader)

    assert_same(parity, code)


def test_next_in_a_compiled_function(parity: Parity) -> None:
    def code(side: Side) -> object:
        def step(batches: Any) -> Any:
            return next(batches)["x"] + 1

        batches = iter(side.loader(KINDS["dicts"](), batch_size=2))
        taken = compiled(step) if side.is_feedline else step
        return [taken(batches) for _ in range(3)]

    assert_same(parity, code)
