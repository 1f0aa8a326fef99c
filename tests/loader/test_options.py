"""Options are attributes from which a loader can be rebuilt; subclasses may use the same names for their own."""

from __future__ import annotations

import copy
import inspect
import pickle
import re
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.sample(4)

torch = pytest.importorskip("torch")

from torch.utils.data import SequentialSampler, TensorDataset  # noqa: E402

from feedline import DataLoader, DataLoader2, Loader, record  # noqa: E402
from feedline.faults.policy import OnError  # noqa: E402
from feedline.loader.arguments import name_options  # noqa: E402
from feedline.loader.base import config_of, run_of  # noqa: E402
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


def test_documented_defaults_equal_those_of_the_signature() -> None:
    text = " ".join((inspect.getdoc(DataLoader) or "").split())
    parameters = inspect.signature(DataLoader.__init__).parameters
    for name, following in zip(PARAMETERS[1:], [*PARAMETERS[2:], "Raises"], strict=True):
        own = text.partition(f" {name}: ")[2].partition(f" {following}: ")[0]
        default = parameters[name].default
        shown = f'"{default}"' if isinstance(default, str) else str(default)
        assert re.search(rf"Default: {re.escape(shown)}(\.|,)", own), (name, own)


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


@pytest.mark.parametrize("only_vars", [False, True], ids=["getattr", "vars"])
@pytest.mark.parametrize("kind", [DataLoader, DataLoader2])
@pytest.mark.parametrize("given", GIVEN, ids=lambda given: ", ".join(given)[:40] or "nothing")
def test_a_loader_can_be_rebuilt_from_its_attributes(given: dict[str, Any], kind: Any, only_vars: bool) -> None:
    loader = kind(DATA, **given)
    arguments = public(loader, only_vars=only_vars)
    assert set(OWN) <= set(arguments)
    assert {name for name in vars(loader) if not name.startswith("_")} <= set(PARAMETERS)
    again = type(loader)(**arguments)
    rebuilt = public(again, only_vars=False)
    assert {name: rebuilt[name] for name in arguments} == arguments
    assert config_of(again).settings == config_of(loader).settings
    assert run_of(again).options == run_of(loader).options
    for name in set(given) - {"shuffle"}:
        assert getattr(again, name) == getattr(loader, name)
        if name != "multiprocessing_context":  # torch turns its name into a context
            assert getattr(again, name) == given[name]


def test_every_parameter_is_covered() -> None:
    assert {name for given in GIVEN for name in given} | {"dataset", "pin_memory", "pin_memory_device"} == set(
        PARAMETERS
    )


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


@pytest.mark.parametrize("kind", [Before, After, OfTheClass])
@pytest.mark.parametrize("workers", [0, 2])
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


def test_properties_and_methods_of_a_subclass_are_not_used_as_options() -> None:
    class Hooked(DataLoader[Any]):
        @property
        def seed(self) -> int:  # type: ignore[override]
            raise RuntimeError("not yet")

        def on_error(self, error: Exception) -> str:  # type: ignore[override]
            return f"handled {error}"

    loader = Hooked(DATA, 5, seed=1, shuffle=True)
    assert [batch[0].tolist() for batch in loader] == [
        batch[0].tolist() for batch in DataLoader(DATA, 5, seed=1, shuffle=True)
    ]
    assert loader.on_error(ValueError("x")) == "handled x"


def test_a_subclass_may_set_on_error_beforehand() -> None:
    class Keeps(DataLoader[Any]):
        def __init__(self, dataset: Any, on_error: OnError) -> None:
            self.on_error = on_error
            super().__init__(dataset, on_error=on_error)

    assert Keeps(DATA, "skip").on_error == "skip"


class Busy(DataLoader[Any]):
    """Uses names for its own purposes that a loader might use for its parts."""

    tuning = {"lr": 1}  # type: ignore[assignment]  # noqa: RUF012

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self._run = self._view = "the run of another tool"
        super().__init__(*arguments, **options)
        self._run = self._view = self._settings = self._target = self._order = "again"


class BusyToo(Loader):
    """The same, for the other loader."""

    tuning = None

    def _run(self) -> None: ...

    def _view(self, what: str) -> None: ...


@pytest.mark.parametrize("workers", [0, 2, "auto"])
def test_subclasses_may_use_likely_names_of_parts(workers: Any, tmp_path: Path) -> None:
    for loader in (Busy(range(20), 4, num_workers=workers), BusyToo(list(range(20)), 4, workers=workers)):
        with record(loader, tmp_path / "run.json"):
            assert sum(map(len, loader)) == 20
        assert sum(map(len, copy.copy(loader))) == 20
        assert loader.state_dict()


def test_speechbrains_way_to_skip_batches_works() -> None:
    class Saveable(DataLoader[Any]):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            self._speechbrain_recovery_skip_to = None
            super().__init__(*arguments, **options)

    loader = Saveable(range(20))
    assert loader._speechbrain_recovery_skip_to is None
    loader._speechbrain_recovery_skip_to = 18  # type: ignore[assignment]
    assert [batch.item() for batch in loader] == [18, 19]
    assert loader._speechbrain_recovery_skip_to is None


def test_repr_shows_the_seed_in_use() -> None:
    loader = Loader(list(range(12)), 4, shuffle=True, seed=1)
    loader.seed = 2
    assert "seed=1" in repr(loader)


def test_reassigning_an_option_has_no_effect() -> None:
    loader = DataLoader(DATA, 5, seed=1, shuffle=True)
    first = [batch[0].tolist() for batch in loader]
    loader.seed, loader.engine, loader.restarts = 2, "thread", 3
    loader.set_epoch(0)
    assert [batch[0].tolist() for batch in loader] == first


def test_attributes_that_torch_reads_again_are_read_again() -> None:
    loader = DataLoader(DATA, 5)
    loader.num_workers, loader.prefetch_factor, loader.collate_fn = 1, 3, collate
    assert [len(batch) for batch in loader] == [5, 5, 5, 5]
    assert (run_of(loader).resources.settings.worker_count, run_of(loader).resources.settings.depth) == (1, 3)
    with pytest.raises(ValueError, match="batch_size attribute should not be set"):
        loader.batch_size = 3
    with pytest.raises(ValueError, match="sampler attribute should not be set"):
        loader.sampler = SequentialSampler(DATA)


# -- subclasses that pass on **kwargs


def names_of(init: Any) -> list[str]:
    name_options(init, list(inspect.signature(DataLoader.__init__).parameters.values())[14:])
    return list(inspect.signature(init).parameters)


def test_options_are_added_to_a_signature_with_kwargs() -> None:
    def init(self: Any, dataset: Any, **options: Any) -> None:
        pass

    assert names_of(init) == ["self", "dataset", *PARAMETERS[13:], "options"]


def test_options_that_a_constructor_uses_are_left_out() -> None:
    def init(self: Any, dataset: Any, seed: int, **options: Any) -> None:
        self.scheduler = "cosine"
        DataLoader(dataset, on_error="skip", **options)
        options.setdefault("shard", False)

    assert {"scheduler", "on_error", "shard"}.isdisjoint(names_of(init))
    assert {"engine", "restarts"} <= set(names_of(init))


def test_signatures_without_kwargs_stay_unchanged() -> None:
    def init(self: Any, dataset: Any) -> None:
        pass

    assert names_of(init) == ["self", "dataset"]
