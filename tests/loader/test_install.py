"""feedline installed in place of torch's loader, under all its names, and uninstalled again."""

from __future__ import annotations

import functools
import inspect
import pickle
import sys
import types
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.utils.data
import torch.utils.data.dataloader
from torch.utils.data import DataLoader as TorchLoader
from torchdata.stateful_dataloader import StatefulDataLoader

import feedline
from feedline.loader.torch_batches import TorchBatches

_kept = [TorchLoader, StatefulDataLoader]  # in a list, where `install` does not look


@pytest.fixture(autouse=True)
def uninstalled() -> Iterator[None]:
    yield
    feedline.uninstall()


def samples(loader: Any) -> list[int]:
    return [index for batch in loader for index in batch.tolist()]


@pytest.fixture
def library() -> Iterator[types.ModuleType]:
    """A library that has imported torch's loader and creates one."""
    module = types.ModuleType("a_library")
    code = "from torch.utils.data import DataLoader as Loader\ndef build(*a, **k):\n    return Loader(*a, **k)\n"
    exec(code, vars(module))
    sys.modules["a_library"] = module
    yield module
    del sys.modules["a_library"]


def test_every_name_of_torchs_loader_is_feedlines(library: types.ModuleType) -> None:
    feedline.install()
    for kind in (torch.utils.data.DataLoader, torch.utils.data.dataloader.DataLoader, TorchLoader, library.Loader):
        assert issubclass(kind, feedline.DataLoader)
    loader = library.build(range(6), batch_size=4)
    assert isinstance(iter(loader), TorchBatches)
    assert samples(loader) == list(range(6))


def test_torchdatas_loader_is_replaced_too() -> None:
    feedline.install()
    loader = StatefulDataLoader(range(6), batch_size=2, snapshot_every_n_steps=2)
    batches = iter(loader)
    assert isinstance(batches, TorchBatches)
    next(batches)
    other = StatefulDataLoader(range(6), batch_size=2)
    other.load_state_dict(loader.state_dict())
    assert samples(other) == [2, 3, 4, 5]


def test_uninstall_restores_everything(library: types.ModuleType) -> None:
    feedline.install()
    loader = torch.utils.data.DataLoader(range(4))  # type: ignore[arg-type, var-annotated]
    feedline.uninstall()
    assert torch.utils.data.DataLoader is torch.utils.data.dataloader.DataLoader is TorchLoader is _kept[0]
    assert library.Loader is _kept[0]
    assert StatefulDataLoader is _kept[1]
    assert isinstance(loader, TorchLoader)
    assert samples(loader) == list(range(4))


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")  # torchdata uses it
def test_isinstance_also_holds_for_loaders_created_before() -> None:
    plain = _kept[0](range(4))
    stateful = _kept[1](range(4))
    own = feedline.DataLoader(range(4))
    feedline.install()
    new = torch.utils.data.DataLoader(range(4))  # type: ignore[arg-type, var-annotated]
    assert all(isinstance(loader, torch.utils.data.DataLoader) for loader in (plain, stateful, own, new))
    assert [isinstance(loader, StatefulDataLoader) for loader in (plain, stateful)] == [False, True]
    assert [isinstance(loader, feedline.DataLoader) for loader in (plain, stateful, own, new)] == [
        False,
        False,
        True,
        True,
    ]
    assert isinstance(new, _kept[0])
    assert issubclass(feedline.DataLoader, torch.utils.data.DataLoader)
    assert not isinstance(3, torch.utils.data.DataLoader)


@pytest.mark.parametrize("original", ["DataLoader", "StatefulDataLoader"])
def test_all_of_feedlines_loaders_count_as_torchs_and_torchdatas(original: str) -> None:
    own = feedline.DataLoader(range(3))
    feedline.install()

    class Derived(torch.utils.data.DataLoader[Any]):
        pass

    class DerivedFromStateful(StatefulDataLoader[Any]):  # type: ignore[misc]  # torchdata is not typed
        pass

    class Wrapper:  # as Accelerate's, which have the class of the loader inside
        __class__ = Derived  # type: ignore[assignment]

    kind = {"DataLoader": torch.utils.data.DataLoader, "StatefulDataLoader": StatefulDataLoader}[original]
    kinds = (torch.utils.data.DataLoader, StatefulDataLoader, Derived, DerivedFromStateful)
    assert all(issubclass(derived, kind) for derived in kinds)
    assert all(isinstance(derived(range(3)), kind) for derived in kinds)  # type: ignore[arg-type]
    assert isinstance(Wrapper(), kind)
    assert isinstance(own, kind)
    assert not issubclass(torch.utils.data.DataLoader, Derived)


def record_constructors(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Record the arguments of all loaders of this class, as Lightning does to create them again."""

    def recording(init: Any) -> Any:
        @functools.wraps(init)
        def recorded(self: Any, *arguments: object, **options: object) -> None:
            vars(self).setdefault("recorded", (arguments, options))
            vars(self)["recorded_dataset"] = inspect.signature(init).bind(self, *arguments, **options).args[1]
            init(self, *arguments, **options)

        return recorded

    kinds = [kind]
    for one in kinds:
        kinds += type.__subclasses__(one)
        if "__init__" in vars(one):
            monkeypatch.setattr(one, "__init__", recording(one.__init__))


def test_frameworks_can_record_the_arguments_of_constructors(monkeypatch: pytest.MonkeyPatch) -> None:
    feedline.install()

    class Plain(torch.utils.data.DataLoader[Any]):
        pass

    class WithConstructor(torch.utils.data.DataLoader[Any]):
        def __init__(self, size: int) -> None:
            super().__init__(range(size), 2)  # type: ignore[arg-type]

    record_constructors(torch.utils.data.DataLoader, monkeypatch)
    found: list[Any] = [
        torch.utils.data.DataLoader(range(3), 2),  # type: ignore[arg-type]
        StatefulDataLoader(range(3), 2),
        Plain(range(3), 2),  # type: ignore[arg-type]
        WithConstructor(3),
    ]
    assert [one.recorded[0] for one in found] == [(range(3), 2)] * 3 + [(3,)]
    assert [one.recorded_dataset for one in found] == [range(3)] * 4


def test_a_loader_can_be_pickled_while_installed_and_afterwards() -> None:
    with feedline.install():
        loader = torch.utils.data.DataLoader(range(4), batch_size=2, on_error="skip")  # type: ignore[arg-type, call-arg, var-annotated]
        inside = pickle.loads(pickle.dumps(loader))
    outside = pickle.loads(pickle.dumps(loader))
    assert [samples(one) for one in (inside, outside)] == [list(range(4))] * 2
    assert outside.on_error == "skip"
