"""The options of the drop-in that torch's loader has not, as they were given."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from feedline.abc.scheduler import Scheduler


@dataclass(frozen=True)
class Options:
    """What a loader goes by, whatever becomes of its public attributes.

    Subclasses have attributes of their own, and `split`, `engine` or `seed` are likely names. So the loader reads its
    options from here. Frameworks, on the other hand, build a loader anew from its public attributes: `show` makes
    them, for readers only.
    """

    seed: int | None
    shard: bool | str | None
    engine: str
    scheduler: Scheduler | None
    memory_budget: int | str | None
    split: int
    restarts: int | None
    max_memory_per_worker: int | str | None
    snapshot_every_n_steps: int | None

    # Any: the loader of whatever class.
    def show(self, loader: Any) -> None:
        """Give a loader a public attribute for each option, unless it or its class has one of that name already."""
        for name, value in vars(self).items():
            if not hasattr(type(loader), name):
                vars(loader).setdefault(name, value)


def name_options(init: Callable[..., None], options: Iterable[inspect.Parameter]) -> None:
    """Write options into the signature of a subclass's constructor that passes on `**kwargs`.

    Frameworks rebuild a loader with the arguments that its signature names; of `**kwargs` they know only that torch's
    own arguments fit in. An option whose name occurs in the constructor stays out: it is given there, or means
    something else.
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
