"""What an object consists of, and how the user gets at each part."""

from __future__ import annotations

import collections
import functools
import math
import threading
from typing import Any

import numpy as np
import pytest
import torch

from feedline.collate import pad
from tests.engines.unpicklable.objects import (
    ADict,
    AList,
    ASet,
    ATuple,
    Holding,
    InSlots,
    OwnState,
    Pair,
    Raising,
    Rebuilt,
    RebuiltByLambda,
    Record,
    SecondOnly,
    StateOfAnotherForm,
    StateOfTwo,
    bad,
    explained,
    local_class,
    path_in,
    spec_of,
)


@pytest.mark.parametrize(
    ("dataset", "path"),
    [
        (bad, "dataset"),
        (Holding(_lock=threading.Lock()), "dataset._lock"),
        (Holding(transform=Holding(fns=[abs, math.floor, lambda x: x])), "dataset.transform.fns[2]"),
        (Holding(kept={"train": bad}), "dataset.kept['train']"),
        (Holding(kept={1: {(2, 3): bad}}), "list(dataset.kept[1].values())[0]"),
        (Holding(kept={"a": 1, bad: 2}), "list(dataset.kept)[1]"),
        (Holding(kept=(1, bad)), "dataset.kept[1]"),
        (Holding(kept={bad}), "list(dataset.kept)[0]"),
        (Holding(kept=frozenset([bad])), "list(dataset.kept)[0]"),
        (Holding(kept=collections.deque([1, bad])), "dataset.kept[1]"),
        (Holding(kept=collections.OrderedDict(a=1, b=bad)), "dataset.kept['b']"),
        (Holding(kept=collections.defaultdict(bad)), "dataset.kept.default_factory"),
        (Holding(kept=collections.defaultdict(list, a=bad)), "dataset.kept['a']"),
        (Holding(kept=Pair(1, bad)), "dataset.kept.right"),
        (Holding(kept=ATuple((1, bad))), "dataset.kept[1]"),
        (Holding(kept=ASet([bad])), "list(dataset.kept)[0]"),
        (Holding(kept=AList([1, bad])), "dataset.kept[1]"),
        (Holding(kept=ADict(a=bad)), "dataset.kept['a']"),
        (Holding(kept=InSlots(bad)), "dataset.kept.kept"),
        (Holding(kept=Record([bad])), "dataset.kept.kept[0]"),
        (Holding(kept=OwnState(bad)), "dataset.kept.__getstate__()['renamed'][0]"),
        (Holding(kept=SecondOnly(bad)), "dataset.kept.second"),
        (Holding(kept=StateOfAnotherForm(bad)), "dataset.kept.__getstate__()[1]"),
        (Holding(kept=StateOfTwo(bad)), "dataset.kept.__getstate__()[1][0]"),
        (Holding(kept=Rebuilt(bad)), "dataset.kept.kept"),
        (Holding(kept=RebuiltByLambda()), "dataset.kept.__reduce__()[0]"),
        (Holding(kept=Raising()), "dataset.kept"),
        (Holding(kept=local_class()()), "dataset.kept"),
        (Holding(kept=Holding(inner=bad).method), "dataset.kept.__self__.inner"),
        (Holding(kept=functools.partial(print, bad)), "dataset.kept.args[0]"),
        (Holding(kept=np.array([1, bad], object)), "dataset.kept[1]"),
        (Holding(kept=np.array([[1, bad]], object)), "dataset.kept.flat[1]"),
        (torch.utils.data.Subset(Holding(kept=bad), [0]), "dataset.dataset.kept"),  # type: ignore[arg-type]
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_the_smallest_part_is_named(dataset: Any, path: str) -> None:
    assert path_in(explained(spec_of(dataset))) == path


@pytest.mark.parametrize(
    ("collate", "path"),
    [
        (bad, "collate_fn"),
        (functools.partial(print, end=bad), "collate_fn.keywords['end']"),
        (functools.partial(bad), "collate_fn.func"),
        (Holding(kept=bad).method, "collate_fn.__self__.kept"),
        (pad(inner=lambda samples: samples), "collate_fn.inner"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_functions_are_called_as_the_user_calls_them(collate: Any, path: str) -> None:
    assert path_in(explained(spec_of([], collate))) == path
    assert path_in(explained(spec_of([], init=collate))) == path.replace("collate_fn", "worker_init_fn")


def test_one_object_in_two_attributes() -> None:
    shared = [bad]
    dataset = Holding(one=OwnState(1), two=shared, three=shared)
    assert path_in(explained(spec_of(dataset))) == "dataset.two[0]"
