"""Datasets that Lance itself has written, in a process of its own."""

from __future__ import annotations

import os
import pickle
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from feedline import Loader
from feedline.datasets import LanceDataset, open_dataset
from feedline.errors import BadOption, MissingExtra, SourceChanged, SourceError
from feedline.samplers import BlockSampler
from tests.datasets.contract import SourceContract

COUNT = 40
_WRITE = """
import sys, lance, pyarrow as pa
table = pa.ipc.open_file(sys.argv[1]).read_all()
lance.write_dataset(table, sys.argv[2], mode=sys.argv[3], max_rows_per_file=15)
if sys.argv[4:]:
    lance.dataset(sys.argv[2]).delete(sys.argv[4])
"""


# Any: samples of different types.
def rows(first: int = 0) -> list[dict[str, Any]]:
    return [
        {
            "label": np.int64(first + number),
            "vector": np.arange(3, dtype=np.float32) + first + number,
            "text": f"row {first + number}" if number % 7 else None,
            "image": bytes(number),
        }
        for number in range(COUNT)
    ]


def write(path: Path, samples: list[dict[str, Any]], mode: str = "create", delete: str = "") -> Path:
    """Write a dataset in a process of its own: the one of the tests forks others."""
    columns = {name: [sample[name] for sample in samples] for name in samples[0]}
    vectors = pa.array(list(map(list, columns["vector"])), pa.list_(pa.float32(), 3))
    table = pa.table({**columns, "vector": vectors})
    with pa.ipc.new_file(str(path.with_suffix(".arrow")), table.schema) as file:
        file.write_table(table)
    places = [str(path.with_suffix(".arrow")), str(path), mode, *([delete] if delete else [])]
    subprocess.run([sys.executable, "-c", _WRITE, *places], check=True, stdout=subprocess.DEVNULL)
    return path


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("lance") / "all.lance", rows())


@pytest.mark.slow  # each source starts a process, and that takes most of a second
class TestContract(SourceContract):
    takes_fields = True

    @pytest.fixture(autouse=True)
    def _written(self, written: Path, tmp_path: Path) -> None:
        self.path = Path(shutil.copytree(written, tmp_path / "a %20 b:c.lance"))

    def make_source(self, **options: Any) -> LanceDataset:  # Any: options of any type
        return LanceDataset(self.path, **options)

    def samples(self) -> list[dict[str, Any]]:
        return rows()


@pytest.mark.slow  # it starts Lance three times to write
def test_a_version_stays_whatever_is_written_afterwards(tmp_path: Path) -> None:
    path = write(tmp_path / "a.lance", rows())
    old, pickled = LanceDataset(path, "label"), pickle.dumps(LanceDataset(path, "label"))
    write(path, rows(100), "append", delete="label < 10")
    new = LanceDataset(path, "label")
    assert (len(old), len(new), new.version) == (COUNT, 2 * COUNT - 10, 3)
    assert [*old] == [*pickle.loads(pickled)] == [*LanceDataset(path, "label", version=1)] == [*range(COUNT)]
    assert [*new] == [*new.stream()] == [*range(10, COUNT), *range(100, 100 + COUNT)]
    assert all(Path(one).is_file() for one in new._stored_in())
    shutil.rmtree(path)
    write(path, rows(50))
    with pytest.raises(SourceChanged, match=r"a\.lance"):
        pickle.loads(pickled)[0]


def test_batches_are_columns_and_streams_resume(written: Path) -> None:
    dataset, samples = open_dataset(f"{written}/", fields=["vector", "label", "text"]), rows()
    assert isinstance(dataset, LanceDataset)
    found = dataset.read_columns(np.array([30, 2, 2, 39, 15]))
    assert found["label"].tolist() == [30, 2, 2, 39, 15]
    assert found["vector"].shape == (5, 3)
    assert found["text"] is not None
    assert dataset.row_group_sizes.tolist() == [15, 15, 10]
    order = list(BlockSampler(dataset.row_group_sizes, window=1))
    assert sorted(order) == list(range(COUNT))
    stream = LanceDataset(written, "label").stream(shuffle=True, seed=3)
    labels = [int(label) for batch in Loader(stream, 1, workers=2) for label in batch]  # after use in this process
    assert sorted(labels) == list(range(COUNT)) != labels
    passed, again = iter(stream), iter(stream)
    assert [next(passed) for _ in range(17)] == labels[:17]
    again.load_state_dict(passed.state_dict())
    assert [*again] == labels[17:]
    assert [sample["text"] for sample in dataset] == [sample["text"] for sample in samples]


@pytest.mark.slow  # each dataset starts a process
def test_damage_is_an_error_that_names_the_dataset(tmp_path: Path, written: Path) -> None:
    path = Path(shutil.copytree(written, tmp_path / "a.lance"))
    dataset = LanceDataset(path)
    for file in dataset._stored_in():
        os.truncate(file, os.path.getsize(file) // 3)
    for index in (0, 20, COUNT - 1):
        with pytest.raises(SourceError, match=r"a\.lance"):
            dataset[index]
    for manifest in path.glob("_versions/*.manifest"):
        manifest.write_bytes(bytes(1000))
    with pytest.raises(SourceError, match=r"a\.lance"):
        LanceDataset(path)


@pytest.mark.slow
def test_helpers_that_are_interrupted_or_killed(written: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer is not taken for that of another read, and another helper is started."""

    def interrupted() -> object:
        raise KeyboardInterrupt

    dataset = LanceDataset(written, "label")
    monkeypatch.setattr(dataset._helper.get()._pipe, "recv", interrupted)
    with pytest.raises(KeyboardInterrupt):
        dataset[10]
    monkeypatch.undo()
    assert [dataset[30], dataset[20]] == [30, 20]
    dataset._helper.get()._process.kill()
    with pytest.raises(SourceError, match="-9"):
        dataset[2]
    assert dataset[3] == 3


def test_bad_options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    secret = {"aws_secret_access_key": "hunter22hunter22"}
    with pytest.raises(SourceError, match="missing") as caught:
        LanceDataset(tmp_path / "missing.lance", storage_options=secret)
    assert "hunter22" not in f"{caught.value}{caught.value.__cause__}"
    for version in (1.5, True):
        with pytest.raises(BadOption, match="version"):
            LanceDataset(tmp_path, version=version)  # type: ignore[arg-type]
    monkeypatch.setitem(sys.modules, "lance", None)
    with pytest.raises(MissingExtra, match="lance"):
        LanceDataset(tmp_path)
