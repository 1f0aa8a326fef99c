"""Checks of the loaders' arguments. torch checks its own."""

from __future__ import annotations

import difflib
import functools
import inspect
import multiprocessing
import os
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from multiprocessing.context import BaseContext
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numpy as np

from feedline.abc.faults import ErrorPolicy
from feedline.abc.sampler import BatchSampler
from feedline.abc.scheduler import Scheduler
from feedline.abc.source import ShardedSource, StreamSource
from feedline.delivery.config import is_auto
from feedline.errors import BadOption, OptionWarning, warn_user
from feedline.faults.actions import Replace, Retry
from feedline.system.failures import INSTEAD_OF_PATH
from feedline.types import DatasetKind, is_finite

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

    from feedline.collate.picked import Fields
    from feedline.delivery.driver.tuning import Tuning
    from feedline.workers.ray.options import RayOptions

Init = TypeVar("Init", bound=Callable[..., None])

_OTHER_NAME = {
    "generator": "seed",
    "multiprocessing_context": "start_method",
    "start_method": "multiprocessing_context",
}
"""The other loader's name for an argument, where the two names have nothing in common."""


DEFAULT_MESH_TIMEOUT_S = 600.0
"""As long as a slow file system may keep a rank from its dataset. A guess: torch waits for 10 to 30 minutes."""

_TORCH_ONLY = ("pin_memory", "pin_memory_device", "snapshot_every_n_steps")
"""Arguments that only `feedline.DataLoader` has."""


def named(init: Init) -> Init:
    """Make a constructor suggest the right name when it gets an unknown argument.

    One loader has torch's names and the other feedline's, which are easily mixed up.
    """
    known = list(inspect.signature(init).parameters)[1:]

    @functools.wraps(init)
    def checked(*arguments: object, **options: object) -> None:
        for name in options:
            if name not in known:
                kind = type(arguments[0]).__name__
                raise TypeError(f"{kind}() got an unexpected keyword argument {name!r}. {_meant(name, known)}")
        try:
            init(*arguments, **options)
        except (TypeError, ValueError) as exc:
            from feedline.frameworks.torch_notes import explain

            explain(exc, {**dict(zip(known, arguments[1:], strict=False)), **options})
            raise

    return cast("Init", checked)


def tuning_of(workers: object, prefetch: object) -> Tuning | None:
    """Return the object that chooses the values given as "auto"; None if neither argument is "auto"."""
    if not (is_auto(workers) or is_auto(prefetch)):
        return None
    from feedline.delivery.driver import auto  # loads the engines, because it tries them

    return auto.tuning_of(workers, prefetch)


def depth_of(prefetch: object) -> object:
    """Return the given prefetch depth; None for "auto"."""
    return None if is_auto(prefetch) else prefetch


def warn_dubious(dataset: object, shuffle: object) -> None:
    """Warn about arguments of torch's that are valid but probably not intended."""
    if isinstance(dataset, str) and _looks_like_path(dataset):
        warn_user(
            f"dataset={dataset!r:.200} is a string, so each of its {len(dataset)} characters is a sample. "
            f"{INSTEAD_OF_PATH}",
            OptionWarning,
        )
    if isinstance(shuffle, str):
        does = "shuffles" if shuffle else "does not shuffle"
        warn_user(
            f"shuffle={shuffle!r} is a string, not a bool: this loader {does}. Give True or False.", OptionWarning
        )


def warn_useless_timeout(name: str, timeout_s: float, workers_name: str, workers: int) -> None:
    """Warn about a timeout without workers, where torch's own loader fails with an AssertionError once it is used."""
    if timeout_s and not workers:
        warn_user(
            f"{name}={timeout_s} has no effect without workers: the training loop makes the batches itself and cannot "
            f"be interrupted. Give {workers_name}=1 or more, or drop {name}=.",
            OptionWarning,
        )


def _looks_like_path(text: str) -> bool:
    """False if the text is clearly training data, to be read character by character."""
    return len(text) < _LONGEST_PATH and "\n" not in text and (os.sep in text or os.path.exists(text))


_LONGEST_PATH = 4096


def bytes_of(name: str, size: int | str | None, *, least: int = 1) -> int | None:
    """Return a size in bytes, None if it was not given; reject one below `least`."""
    if size is None:
        return None
    from feedline.system.sizes import byte_count

    return byte_count(name, size, least=least)


_LEAST_BUDGET = 1024
"""Bytes. A smaller value is probably a mistake; 0 means as little as possible."""


def _meant(name: str, known: Collection[str]) -> str:
    """Return a sentence that names the argument that was probably meant."""
    if name in _TORCH_ONLY:
        return "Only feedline.DataLoader, the loader for torch, has it."
    inside = sorted((one for one in known if one in name or name in one), key=lambda one: abs(len(one) - len(name)))
    close = [_OTHER_NAME.get(name, ""), *inside, *difflib.get_close_matches(name, known)]
    meant = next((one for one in close if one in known), None)
    if meant is not None:
        return f"Did you mean {meant}=?"
    return f"The arguments are {', '.join(known)}."


def kind_of(dataset: object) -> DatasetKind:
    """Return the kind of a dataset; reject anything that is not a dataset."""
    kind = type(dataset)
    if isinstance(dataset, (str, os.PathLike)):
        raise BadOption(f"dataset={dataset!r} is a {kind.__name__}, not a dataset. {INSTEAD_OF_PATH}")
    torch_data = sys.modules.get("torch.utils.data")  # its iterable datasets inherit a __getitem__ that only raises
    if torch_data is not None and isinstance(dataset, torch_data.IterableDataset):
        return DatasetKind.ITERABLE
    if hasattr(kind, "__getitem__"):
        return DatasetKind.MAP
    if not hasattr(kind, "__iter__"):
        raise BadOption(
            f"dataset={dataset!r} is not a dataset: it has neither __getitem__ nor __iter__. Pass an object with "
            "__getitem__ and __len__, an iterable, a list of samples, or arrays."
        )
    check_lasting("dataset", dataset)
    return DatasetKind.ITERABLE


def check_sized(dataset: object) -> None:
    """Reject a dataset whose indices are unknown."""
    if not hasattr(type(dataset), "__len__"):
        raise BadOption(
            f"dataset= is a {type(dataset).__name__} with __getitem__ but without __len__, so its indices are not "
            "known. Add a __len__, or pass the indices as sampler=."
        )


def check_sampler(name: str, sampler: object) -> None:
    """Reject a sampler that cannot be iterated over in every epoch."""
    if sampler is None:
        return
    if not hasattr(type(sampler), "__iter__") or isinstance(sampler, (str, bytes)):
        raise BadOption(f"{name}={sampler!r} cannot be iterated over, so it yields no indices.")
    check_lasting(name, sampler)


def check_not_batches(sampler: object, batch_size: int | None) -> None:
    """Reject a batch sampler given as a sampler: its indices would be cut into batches again."""
    if batch_size is not None and isinstance(sampler, BatchSampler):
        raise BadOption(
            f"sampler= is a {type(sampler).__name__}, which already yields batches. Pass it as batch_sampler=, without "
            "batch_size."
        )


def check_unordered(dataset: object, given: str) -> None:
    """Reject an argument that would order the samples of one of feedline's streams; `given` is its name."""
    if isinstance(dataset, (ShardedSource, StreamSource)):
        raise BadOption(
            f"{given}= was given, but a {type(dataset).__name__} is a stream, which decides the order of its samples "
            f"itself. Drop {given}=. To shuffle, create the stream with shuffle=True, as in "
            "TarDataset(...).stream(shuffle=True); or read samples by their index, in any order: TarDataset(...), "
            "ParquetDataset(...), SQLDataset(..., key=...)."
        )


def check_policy(policy: ErrorPolicy, *, is_map: bool) -> None:
    """Reject error policies that do not work for iterable datasets."""
    if is_map:
        return
    for action in getattr(policy, "actions", ()):
        if isinstance(action, Replace) or (isinstance(action, Retry) and isinstance(action.then, Replace)):
            raise BadOption(
                "on_error='replace' needs the index of another sample, but the dataset is iterable: its samples have "
                "none. Use 'skip', or 'retry' if its iterator is a feedline.abc.Repeatable."
            )


def check_lasting(name: str, value: object) -> None:
    """Reject generators and similar iterators, which are empty from the second epoch on."""
    kind = type(value)
    if hasattr(kind, "__next__") and kind.__module__ in ("builtins", "itertools"):
        raise BadOption(
            f"{name}= is a {kind.__name__}, which can be iterated over only once, but every epoch iterates again. Pass "
            "a list, or an object whose __iter__ starts from the beginning."
        )


def check_flag(name: str, value: object) -> None:
    """Reject anything that is not a bool."""
    if not isinstance(value, (bool, np.bool_)):
        raise BadOption(f"{name}={value!r} is not True or False.")


def check_count(name: str, value: object, *, least: int, optional: bool = False, auto: bool = False) -> None:
    """Reject anything but an integer of at least `least`, or None if `optional`. `auto` adds "auto" to the message."""
    if value is None and optional:
        return
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        or_else = " or None" if optional else " or 'auto'" if auto else ""
        raise BadOption(f"{name}={value!r} is not an integer{or_else}.")
    if value < least:
        raise BadOption(f"{name}={value} is less than {least}, the smallest valid value.")


def check_callable(name: str, value: object, what: str) -> None:
    """Reject anything that cannot be called; `what` completes "a function that ..."."""
    if value is not None and not callable(value):
        raise BadOption(f"{name}={value!r} is not a function that {what}.")


def check_timeout(timeout_s: object) -> float:
    """Return a timeout as a float; reject anything else."""
    if not is_finite(timeout_s) or timeout_s < 0:
        raise BadOption(f"timeout_s={timeout_s!r} is not a number of seconds; 0 waits without limit.")
    return float(timeout_s)


def keeps_workers(given: bool | None, workers: int, device: object) -> bool:
    """True if workers are kept from epoch to epoch: as given, or by default if a device would wait for new ones."""
    return bool(workers) and device is not None if given is None else given


def check_persistent(persistent: bool, workers: int) -> bool:
    """Reject `persistent` without workers."""
    if persistent and workers == 0:
        raise BadOption(
            "persistent=True keeps workers from epoch to epoch, but workers=0. Drop persistent=, or use at least one "
            "worker."
        )
    return bool(persistent)


def context_of(start_method: str | None, workers: int, engine: str | RayOptions) -> BaseContext | None:
    """Return the multiprocessing context of a start method; None for the program's default."""
    if start_method is None:
        return None
    known = multiprocessing.get_all_start_methods()
    if start_method not in known:
        raise BadOption(f"start_method={start_method!r} is not one of {', '.join(map(repr, known))}.")
    if workers == 0 or engine not in ("auto", "process"):
        raise BadOption(
            f"start_method={start_method!r} needs worker processes, but there are none: workers={workers}, "
            f"engine={engine!r}. Drop start_method=."
        )
    return multiprocessing.get_context(start_method)


# Any: the values of the config's fields.
def fixed_options(
    *,
    seed: int | None,
    shard: bool | str | None,
    engine: str | RayOptions,
    scheduler: Scheduler | None,
    memory_budget: int | str | None,
    restarts: int | None,
    max_memory_per_worker: int | str | None,
    snapshot_every_n_steps: int | None = 1,
    device: object = None,
    device_transform: Callable[[Any], object] | None = None,
    mesh: DeviceMesh | None = None,
    data_dims: str | Sequence[str] | None = None,
    rank: int | None = None,
    world_size: int | None = None,
    check: int | None = None,
    mesh_timeout_s: float = DEFAULT_MESH_TIMEOUT_S,
    fields: object = None,
) -> dict[str, Any]:
    """Check the options of both loaders that are not read again; return them by the names of the config's fields.

    Subclasses have attributes of their own, and `engine`, `seed` or `device` are likely names: so no option is read
    from a loader's public attributes, which `show` creates for frameworks that rebuild loaders.
    """
    check_count("seed", seed, least=0, optional=True)
    check_count("restarts", restarts, least=0, optional=True)
    check_count("snapshot_every_n_steps", snapshot_every_n_steps, least=0, optional=True)
    check_callable("device_transform", device_transform, "takes a batch and returns one")
    check_count("check", check, least=0, optional=True)
    checked: Fields | None = None
    if fields is not None:
        from feedline.collate.picked import checked_fields  # few loaders drop fields

        checked = checked_fields(fields)
    place = None
    if not (mesh is None and data_dims is None and rank is None and world_size is None and not check):
        from feedline.loader.placing import data_rank  # few loaders have one

        place = data_rank(mesh, data_dims, rank, world_size, check=check, timeout_s=check_timeout(mesh_timeout_s))
    return {
        "data_rank": place,
        "fields": checked,
        "seed": None if seed is None else int(seed),  # a plain integer, not NumPy's
        "shard": shard,
        "engine": engine,
        "scheduler": scheduler,
        "memory_budget": bytes_of("memory_budget", memory_budget, least=0 if memory_budget == 0 else _LEAST_BUDGET),
        "restarts": restarts,
        "worker_bytes": bytes_of("max_memory_per_worker", max_memory_per_worker),
        "snapshot_every": snapshot_every_n_steps or 0,
        "device": device,
        "device_transform": device_transform,
    }


# Any: a collate function; both loaders have their own default.
def picking(collate: Any, options: Mapping[str, Any], *, batched: bool) -> Any:
    """Return a loader's collate function, with `fields=` if that was given."""
    fields = options["fields"]
    if fields is None:
        return collate
    from feedline.collate.picked import Picked

    return Picked(collate, fields, batched=batched)


def show(loader: object, options: Mapping[str, object]) -> None:
    """Set a public attribute on a loader for each option, unless it or its class has one of that name already."""
    for name, value in options.items():
        if not hasattr(type(loader), name):
            vars(loader).setdefault(name, value)


def name_options(init: Callable[..., None], options: Iterable[inspect.Parameter]) -> None:
    """Add options to the signature of a subclass's constructor that passes on `**kwargs`.

    Frameworks rebuild a loader with the arguments that its signature names; they assume that `**kwargs` takes only
    torch's own arguments. An option whose name occurs in the constructor is left out: the constructor sets it, or uses
    the name for something else.
    """
    signature = inspect.signature(init)
    *own, last = signature.parameters.values()
    code = getattr(inspect.unwrap(init), "__code__", None)
    if last.kind is not inspect.Parameter.VAR_KEYWORD or code is None:
        return
    constants = [item for value in code.co_consts for item in (value if isinstance(value, tuple) else (value,))]
    taken = {*signature.parameters, *code.co_names, *(item for item in constants if isinstance(item, str))}
    more = [option for option in options if option.name not in taken]
    init.__signature__ = signature.replace(parameters=[*own, *more, last])  # type: ignore[attr-defined]
