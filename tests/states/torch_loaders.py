"""`feedline.DataLoader` with torch's own samplers, and torchdata's contract."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.states.data import Counting, Drawing, Resuming, Stateful, StatefulReversed
from tests.states.recipe import Recipe


# Any: loaders and options of all kinds.
def _loader(dataset: Any, batch_size: int = 4, **options: Any) -> Any:
    from feedline import DataLoader

    return DataLoader(_iterable(dataset) if isinstance(dataset, Counting) else dataset, batch_size, **options)


def _iterable(dataset: Counting) -> Any:
    """Return it as an instance of torch's class, which torch's loader requires."""
    import torch.utils.data

    class Iterable(torch.utils.data.IterableDataset[Any]):
        def __iter__(self) -> Iterator[Any]:
            return iter(dataset)

    class StatefulIterable(Iterable):
        def __iter__(self) -> Iterator[Any]:
            worker = torch.utils.data.get_worker_info()
            for sample in dataset:
                yield [*sample, 0 if worker is None else worker.id]

        def state_dict(self) -> Any:
            return dataset.state_dict()  # type: ignore[attr-defined]  # only of those that have one

        def load_state_dict(self, state: Any) -> None:
            dataset.load_state_dict(state)  # type: ignore[attr-defined]

    return StatefulIterable() if hasattr(dataset, "state_dict") else Iterable()


def _drawn() -> Any:
    """Return a loader whose order torch draws."""
    import torch

    torch.manual_seed(3)
    return _loader(list(range(23)), shuffle=True)


def _generated() -> Any:
    import torch

    return _loader(list(range(23)), shuffle=True, generator=torch.Generator().manual_seed(3))


def _weighted() -> Any:
    import torch

    torch.manual_seed(3)
    return _loader(list(range(23)), sampler=torch.utils.data.WeightedRandomSampler([1.0, 2.0] * 11, 20))


RECIPES: dict[str, Recipe] = {
    name: Recipe(*arguments, needs=("torch",), **options)  # type: ignore[arg-type]  # a table of them
    for name, (arguments, options) in {
        "seed": ((lambda: _loader(Drawing(), shuffle=True, seed=3),), {}),
        "no seed": ((_drawn,), {"is_within": True}),
        "generator": ((_generated,), {}),
        "weighted": ((_weighted,), {"is_within": True}),
        "in order": ((lambda: _loader(list(range(23))),), {}),
        "stateful sampler": ((lambda: _loader(list(range(37)), sampler=StatefulReversed()),), {}),
        "stateful dataset": ((lambda: _loader(Stateful()),), {}),
        "stateful dataset, two workers": ((lambda: _loader(Stateful(), num_workers=2),), {"after": 3}),
        "stateful dataset, every third step": (
            (lambda: _loader(Stateful(), 2, num_workers=2, snapshot_every_n_steps=3),),
            {"after": 5},
        ),
        "stateful iterable": ((lambda: _loader(Resuming()),), {}),
        "stateful iterable, two workers": ((lambda: _loader(Resuming(), num_workers=2, shard=False),), {"after": 3}),
        "iterable, two workers": ((lambda: _loader(Counting(), num_workers=2, seed=3, shard=False),), {"after": 3}),
        "iterable, shared by two workers": (
            (lambda: _loader(Counting(), num_workers=2, seed=3, shard=True),),
            {"after": 3},
        ),
        "iterable, end of an epoch": ((lambda: _loader(Counting(), seed=3),), {"after": None}),
    }.items()
}
