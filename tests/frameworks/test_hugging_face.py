from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import feedline
from feedline.frameworks.hugging_face import columns_of
from tests.parity.observation import describe, outcome

datasets: Any  # the package, imported later as it brings pandas

COUNT = 60
FORMATS = (None, "numpy", "torch")

NUMBERS = {
    "byte": [i % 256 for i in range(COUNT)],
    "small": [-i for i in range(COUNT)],
    "long": [i * 10**15 for i in range(COUNT)],
    "half": [i / 7 for i in range(COUNT)],
    "double": [i / 7 for i in range(COUNT)],
    "flag": [i % 3 == 0 for i in range(COUNT)],
    "label": [i % 3 for i in range(COUNT)],
    "name": [f"näme {i}" + "\0" * (i % 2) for i in range(COUNT)],
    "row": [[i, i + 1, -i] for i in range(COUNT)],
    "weights": [[i / 3, i / 7] for i in range(COUNT)],
}


@pytest.fixture(autouse=True, scope="module")
def _import_datasets() -> None:
    global datasets
    datasets = pytest.importorskip("datasets")
    pytest.importorskip("tqdm").tqdm.monitor_interval = 0  # its progress bars leave a thread behind


def features() -> Any:
    value = datasets.Value
    return datasets.Features(
        {
            "byte": value("uint8"),
            "small": value("int16"),
            "long": value("int64"),
            "half": value("float32"),
            "double": value("float64"),
            "flag": value("bool"),
            "label": datasets.ClassLabel(names=["a", "b", "c"]),
            "name": value("string"),
            "row": datasets.List(value("int32")),
            "weights": datasets.List(value("float64")),
        }
    )


def make(names: list[str] | None = None) -> Any:
    dataset = datasets.Dataset.from_dict(NUMBERS, features=features())
    return dataset if names is None else dataset.select_columns(names)


def chunked(dataset: Any) -> Any:
    """Return the same samples in several Arrow chunks."""
    return datasets.concatenate_datasets([dataset.select(range(25)), dataset.select(range(25, COUNT))])


def batches(loader: Any) -> Any:
    return outcome(lambda: [describe(batch) for batch in loader])


VIEWS: dict[str, Any] = {
    "whole": lambda dataset: dataset,
    "selected": lambda dataset: dataset.select([5, 3, 3, 59, 0, *range(20, 40)]),
    "range": lambda dataset: dataset.select(range(10, 50)),
    "shuffled": lambda dataset: dataset.shuffle(seed=3),
    "shard": lambda dataset: dataset.shard(3, 1),
    "chunked": chunked,
    "chunked, shuffled": lambda dataset: chunked(dataset).shuffle(seed=4),
    "one sample": lambda dataset: dataset.select([7]),
}


@pytest.mark.parametrize(
    ("form", "view"),
    [*((FORMATS[number % 3], view) for number, view in enumerate(VIEWS)), ("torch", "whole"), ("numpy", "selected")],
)
def test_batches_equal_those_of_torchs_loader(form: str | None, view: str) -> None:
    names = None if form is not None else [name for name in NUMBERS if name not in ("row", "weights")]
    dataset = VIEWS[view](make(names)).with_format(form)
    order = np.random.default_rng(0).permutation(len(dataset)).tolist()
    assert columns_of(dataset) is not None
    expected = batches(torch.utils.data.DataLoader(dataset, 7, sampler=order))
    assert batches(feedline.DataLoader(dataset, 7, sampler=order)) == expected


@pytest.mark.parametrize("form", FORMATS)
def test_workers_subsets_and_concatenations_give_the_same_batches(form: str | None) -> None:
    dataset = make(["byte", "double", "name"]).with_format(form)
    parts: list[Any] = [
        torch.utils.data.Subset(dataset, [4, 9, 2, 2, 30]),
        torch.utils.data.ConcatDataset([dataset, dataset.select(range(5))]),
    ]
    for part in parts:
        expected = batches(torch.utils.data.DataLoader(part, 4))
        assert batches(feedline.DataLoader(part, 4)) == expected
    expected = batches(torch.utils.data.DataLoader(dataset, 7))
    for engine in ("thread", "process"):
        assert batches(feedline.DataLoader(dataset, 7, num_workers=2, engine=engine)) == expected


ODD: dict[str, Any] = {
    "nulls": lambda: datasets.Dataset.from_dict({"x": [1.0, None, 3.0] * 5}),
    "nulls in lists": lambda: datasets.Dataset.from_dict({"x": [[1.0, None], [3.0, 2.0]] * 5}),
    "large numbers": lambda: datasets.Dataset.from_dict(
        {"x": [1, 2**63 - 1]}, features=datasets.Features({"x": datasets.Value("uint64")})
    ),
    "half floats": lambda: datasets.Dataset.from_dict(
        {"x": [1.5, 2.5]}, features=datasets.Features({"x": datasets.Value("float16")})
    ),
    "empty lists": lambda: datasets.Dataset.from_dict(
        {"x": [[], []]}, features=datasets.Features({"x": datasets.List(datasets.Value("int64"))})
    ),
    "fixed lists": lambda: datasets.Dataset.from_dict(
        {"x": [[1.0, 2.0]] * 3}, features=datasets.Features({"x": datasets.List(datasets.Value("float32"), length=2)})
    ),
    "lists": lambda: make(["row", "weights"]),
    "arrays": lambda: datasets.Dataset.from_dict(
        {"x": [[[1, 2], [3, 4]]] * 3}, features=datasets.Features({"x": datasets.Array2D((2, 2), "uint8")})
    ),
    "options of the format": lambda: datasets.Dataset.from_dict({"x": [1.0, 2.0]}).with_format(
        "torch", dtype=torch.float64
    ),
    "all columns": lambda: make(["byte", "name"]).with_format("torch", columns=["byte"], output_all_columns=True),
    "a transform": lambda: make(["byte"]).with_transform(_doubled),
}


def _doubled(batch: dict[str, list[int]]) -> dict[str, list[int]]:
    return {"byte": [2 * value for value in batch["byte"]]}


@pytest.mark.parametrize(("case", "form"), [(case, FORMATS[number % 3]) for number, case in enumerate(ODD)])
def test_odd_datasets_behave_as_in_torchs_loader(case: str, form: str | None) -> None:
    dataset = ODD[case]()
    if form is not None and dataset.format["type"] is None:
        dataset = dataset.with_format(form)

    expected, found = (batches(kind(dataset, 4)) for kind in (torch.utils.data.DataLoader, feedline.DataLoader))
    is_error = isinstance(expected, tuple) and isinstance(expected[0], type)
    assert found == expected or (is_error and found[0] is expected[0])


def test_samples_of_subclasses_are_read_through_their_methods() -> None:
    class Doubled(datasets.Dataset):  # type: ignore[misc]
        def __getitems__(self, keys: list[int]) -> list[Any]:
            return [{"byte": 2 * sample["byte"]} for sample in datasets.Dataset.__getitems__(self, keys)]

    dataset = make(["byte"])
    dataset.__class__ = Doubled
    assert columns_of(dataset) is None
    (batch,) = feedline.DataLoader(dataset, COUNT)
    assert batch["byte"].tolist() == [2 * (i % 256) for i in range(COUNT)]
