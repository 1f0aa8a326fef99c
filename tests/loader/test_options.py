"""Options are attributes from which a loader can be rebuilt; subclasses may use the same names for their own."""

from __future__ import annotations

import copy
import inspect
import pickle
import re
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch.utils.data import SequentialSampler, TensorDataset  # noqa: E402

from feedline import DataLoader, DataLoader2, Loader  # noqa: E402
from feedline.errors import BadOption, OptionWarning  # noqa: E402
from feedline.loader.base import config_of, session_of  # noqa: E402
from feedline.samplers import BatchSampler, RandomSampler  # noqa: E402
from feedline.schedulers import InOrder  # noqa: E402

DATA = TensorDataset(torch.arange(20))
PARAMETERS = list(inspect.signature(DataLoader.__init__).parameters)[1:]
OWN = [name for name in PARAMETERS if name not in inspect.signature(torch.utils.data.DataLoader.__init__).parameters]


def described(kind: type) -> list[str]:
    """Return the names of the arguments that a docstring describes, in its order."""
    text = inspect.getdoc(kind) or ""
    section = text.partition("\nArgs:\n")[2].partition("\n\n")[0]
    return re.findall(r"^    (\w+): ", section, re.MULTILINE)


def test_every_argument_is_documented_in_order() -> None:
    assert described(DataLoader) == PARAMETERS


def collate(samples: list[Any]) -> Any:
    return samples


def init(worker: int) -> None:
    pass


GIVEN: list[dict[str, Any]] = [
    {},
    {"batch_size": None, "sampler": SequentialSampler(DATA)},
    {"batch_sampler": BatchSampler(RandomSampler(DATA), 3, False), "seed": 2},
    {"shuffle": True, "generator": torch.Generator()},
    {
        "batch_size": 3,
        "shuffle": True,
        "seed": 7,
        "num_workers": 2,
        "collate_fn": collate,
        "drop_last": True,
        "timeout": 9.0,
        "worker_init_fn": init,
        "multiprocessing_context": "spawn",
        "prefetch_factor": 3,
        "persistent_workers": True,
        "in_order": False,
        "snapshot_every_n_steps": 4,
        "engine": "process",
        "scheduler": InOrder(),
        "memory_budget": "1GB",
        "on_error": "skip",
        "restarts": 5,
        "max_memory_per_worker": "2GB",
        "shard": False,
    },
    {"device": torch.device("cpu"), "device_transform": collate},
    {"rank": 1, "world_size": 2, "seed": 3, "fields": ("x",)},
]


def public(loader: Any, *, only_vars: bool) -> dict[str, Any]:
    """Return the arguments from which a loader can be rebuilt: its attributes, as frameworks collect them."""
    # torch creates the ones left out, has no attribute for shuffle, and accepts only one of the two groups.
    one_of = ["batch_sampler"] if loader.batch_size is not None or loader.batch_sampler is None else BATCHING
    names = [name for name in PARAMETERS if name not in ("shuffle", *one_of)]
    if only_vars:  # Lightning's way
        return {
            **{name: vars(loader)[name] for name in names if name in vars(loader)},
            "multiprocessing_context": loader.multiprocessing_context,
        }
    return {name: getattr(loader, name) for name in names}


BATCHING = ["batch_size", "sampler", "drop_last"]


@pytest.mark.parametrize(("kind", "only_vars"), [(DataLoader, False), (DataLoader2, True)])
@pytest.mark.parametrize("given", GIVEN, ids=lambda given: ", ".join(given)[:40] or "nothing")
def test_a_loader_can_be_rebuilt_from_its_attributes(given: dict[str, Any], kind: Any, only_vars: bool) -> None:
    loader = kind(DATA, **given)
    arguments = public(loader, only_vars=only_vars)
    assert set(OWN) <= set(arguments)
    assert {name for name in vars(loader) if not name.startswith("_")} <= set(PARAMETERS)
    again = type(loader)(**arguments)
    rebuilt = public(again, only_vars=False)
    assert {name: rebuilt[name] for name in arguments} == arguments
    assert config_of(again) == config_of(loader)
    assert session_of(again).options == session_of(loader).options
    for name in set(given) - {"shuffle"}:
        assert getattr(again, name) == getattr(loader, name)
        if name != "multiprocessing_context":  # torch turns its name into a context
            assert getattr(again, name) == given[name]


COLLIDING: dict[str, Any] = {
    "seed": 123,
    "shard": "train",
    "engine": "v8",
    "scheduler": "cosine",
    "memory_budget": [1],
    "restarts": "never",
    "max_memory_per_worker": "much",
    "snapshot_every_n_steps": "often",
    "stats": {"mean": 0.5},
    "faults": [],
    "broadcast": True,
}


class Before(DataLoader[Any]):
    def __init__(self, *arguments: Any, **options: Any) -> None:
        vars(self).update(COLLIDING)
        super().__init__(*arguments, **options)


class After(DataLoader[Any]):
    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        for name, value in COLLIDING.items():
            if name != "faults":  # a property without a setter
                setattr(self, name, value)


class OfTheClass(DataLoader[Any]):
    locals().update(COLLIDING)


@pytest.mark.parametrize(("kind", "workers"), [(Before, 0), (After, 2), (OfTheClass, 0)])
def test_attributes_of_a_subclass_are_its_own(kind: Any, workers: int) -> None:
    options: dict[str, Any] = {"batch_size": 3, "shuffle": True, "seed": 7, "num_workers": workers}
    plain, loader = DataLoader(DATA, **options), kind(DATA, **options)
    for _ in range(2):
        assert [batch[0].tolist() for batch in loader] == [batch[0].tolist() for batch in plain]
    for name in set(COLLIDING) - {"faults", *(["broadcast", "stats"] if kind is Before else [])}:
        assert getattr(loader, name) == COLLIDING[name]
    assert loader.state_dict() == plain.state_dict()
    loader.set_epoch(3)
    plain.set_epoch(3)
    twins = [copy.copy(loader)] if workers else [copy.copy(loader), pickle.loads(pickle.dumps(loader))]
    for twin in twins:
        twin.set_epoch(3)
        assert [batch[0].tolist() for batch in twin] == [batch[0].tolist() for batch in plain]
        plain.set_epoch(3)


def test_reassigning_an_option_has_no_effect() -> None:
    loader = DataLoader(DATA, 5, seed=1, shuffle=True)
    first = [batch[0].tolist() for batch in loader]
    for name, value in {"seed": 2, "engine": "thread", "restarts": 3, "device": "cpu"}.items():
        with pytest.warns(OptionWarning, match=f"Assigning to {name} has no effect"):
            setattr(loader, name, value)
    loader.set_epoch(0)
    assert [batch[0].tolist() for batch in loader] == first


class OwnSeed(Loader):
    def __init__(self, dataset: Any, seed: int) -> None:
        super().__init__(dataset, shuffle=True, seed=seed)
        self.seed, self.engine = seed + 1, "v8"


@pytest.mark.parametrize(
    ("make", "name"),
    [(Loader, "dataset"), (Loader, "sampler"), (lambda data: OwnSeed(data, 7), "batch_sampler"), (Loader, "shuffle")],
)
def test_what_orders_the_samples_of_a_loader_cannot_be_reassigned(make: Any, name: str) -> None:
    loader = make(list(range(4)))
    before = [batch.tolist() for batch in copy.copy(loader)]
    with pytest.raises(BadOption, match=f"{name} cannot be changed"):
        setattr(loader, name, [3, 2, 1])
    assert [batch.tolist() for batch in loader] == before


@pytest.mark.parametrize("name", ["seed", "workers"])
def test_options_of_a_loader_cannot_be_reassigned(name: str) -> None:
    loader = Loader(list(range(4)))
    with pytest.raises(BadOption, match=f"{name} cannot be changed"):
        setattr(loader, name, 1)
    loader.batch_size, loader.drop_last, loader.collate_fn = 3, True, sum
    assert list(loader) == [3]


def test_attributes_that_torch_reads_again_are_read_again() -> None:
    loader = DataLoader(DATA, 5)
    loader.num_workers, loader.prefetch_factor, loader.collate_fn = 1, 3, collate
    assert [len(batch) for batch in loader] == [5, 5, 5, 5]
    assert (session_of(loader).resources.config.worker_count, session_of(loader).resources.config.depth) == (1, 3)
    with pytest.raises(ValueError, match="batch_size attribute should not be set"):
        loader.batch_size = 3
    with pytest.raises(ValueError, match="sampler attribute should not be set"):
        loader.sampler = SequentialSampler(DATA)
