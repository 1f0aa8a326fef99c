"""Users' code as type checkers see it: mypy and pyright check this file (`make types`), and it runs.

Type checkers have to reject lines with `type: ignore`: both report an ignore that is not needed.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, IterableDataset, Subset, TensorDataset, random_split

import feedline
from feedline import DataLoader, DataLoader2, Loader, audio, images, text
from feedline.collate import pad
from feedline.datasets import ArrayDataset, CSVDataset, ParquetDataset, Remote, TarDataset, mix, open_dataset
from feedline.datasets.framework.shard_stream import ShardStream
from feedline.errors import BadOption
from feedline.faults import Policy, Retry, Skip
from feedline.insight.recording import Recording
from feedline.insight.stats import Stats
from feedline.samplers import (
    BalancedBatches,
    BalancedSampler,
    DistributedSampler,
    RandomSampler,
    StratifiedBatchSampler,
    attention_cost,
    distribute,
)
from feedline.tools.advise.finding import Finding, Findings

if TYPE_CHECKING:
    from typing_extensions import assert_type
else:

    def assert_type(value: Any, _: Any) -> Any:
        return value


class Squares(Dataset[tuple[torch.Tensor, int]]):
    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.tensor([index * index]), index

    def __len__(self) -> int:
        return 12


class Counting(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(12))


class Words:
    """A map-style dataset that is not a subclass of anything."""

    def __getitem__(self, index: int) -> str:
        return "abcdefghijkl"[index]

    def __len__(self) -> int:
        return 12


def first(samples: list[tuple[torch.Tensor, int]]) -> torch.Tensor:
    return samples[0][0]


def seed_worker(number: int) -> None:
    np.random.default_rng(number)


def test_torchs_datasets() -> None:
    squares = Squares()
    loader = DataLoader(squares, batch_size=4, shuffle=True, generator=torch.Generator(), worker_init_fn=seed_worker)
    assert_type(loader, DataLoader[tuple[torch.Tensor, int]])
    assert sum(len(labels) for _, labels in loader) == 12
    part = Subset(squares, range(6))
    parts: DataLoader[tuple[torch.Tensor, int]] = DataLoader(part, 2)
    assert len(parts) == 3
    train, _ = random_split(squares, [8, 4])
    assert len(DataLoader(train, 4, drop_last=True, collate_fn=first, engine="inline")) == 2
    tensors: DataLoader[tuple[torch.Tensor, ...]] = DataLoader(TensorDataset(torch.arange(4)), 2)
    assert len(tensors) == 2
    assert_type(DataLoader2(Counting(), batch_size=3, shard="exact"), DataLoader2[int])
    torchs: torch.utils.data.DataLoader[tuple[torch.Tensor, int]] = loader  # where a framework requires torch's
    assert len(torchs) == 3


def lengths(batch: list[torch.Tensor]) -> list[int]:
    return [len(tensor) for tensor in batch]


def test_types_of_batches() -> None:
    squares = Squares()
    collated = DataLoader(squares, 4, collate_fn=first)
    assert_type(collated, DataLoader[tuple[torch.Tensor, int], torch.Tensor])
    for tensor in collated:
        assert_type(tensor, torch.Tensor)
        assert tensor.shape == (1,)
    named: DataLoader[tuple[torch.Tensor, int]] = collated  # the second parameter may be left out
    torchs: torch.utils.data.DataLoader[tuple[torch.Tensor, int]] = collated
    assert len(named) == len(torchs) == 3
    for batch in DataLoader(squares, 4):  # the result of the default collate function is unknown
        assert_type(batch, Any)
    for sizes in DataLoader(squares, 4, device_transform=lengths, collate_fn=None, device="cpu"):
        assert_type(sizes, list[int])
    for either in DataLoader2(squares, 4, collate_fn=first):
        assert_type(either, torch.Tensor)
    wrong: DataLoader[tuple[torch.Tensor, int], str] = collated  # type: ignore[assignment]
    assert len(wrong) == 3


def test_subscripting_the_class_at_run_time() -> None:
    assert DataLoader[int] == DataLoader[int, Any]
    assert get_args(DataLoader2[int, str]) == (int, str)

    class Own(DataLoader[int]):
        pass

    assert [batch.tolist() for batch in Own([1, 2, 3], 2)] == [[1, 2], [3]]


def test_other_datasets() -> None:
    assert_type(DataLoader(Words(), batch_size=4), DataLoader[str])
    assert_type(DataLoader([1, 2, 3]), DataLoader[int])
    tuned = DataLoader(Words(), num_workers="auto", prefetch_factor="auto")
    assert tuned.tuning is not None
    assert_type(tuned.tuning.log, list[str])
    assert_type(tuned.num_workers, int)
    assert Loader([1, 2], workers="auto", prefetch="auto").tuning is not None
    train, test = feedline.split(Words(), [0.5, 0.5])
    assert_type(feedline.merge_states([Loader(Words(), 2).state_dict()]), dict[str, Any])
    assert len(DataLoader(train)) == len(DataLoader(test)) == 6


@pytest.mark.slow
def test_feedlines_datasets(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x,y\n1,2\n3,4\n")
    rows = CSVDataset(tmp_path / "a.csv", ("x", "y"), types={"x": "float32"})
    arrays = ArrayDataset({"x": np.arange(4), "y": np.arange(4)})
    for dataset in (rows, arrays, rows.stream(shuffle=True), mix([arrays, arrays], seed=1)):
        for batch in DataLoader(dataset, batch_size=2, num_workers=0):
            assert len(batch) == 2
        for batch in Loader(dataset, 2):
            assert len(batch) == 2
    feedline.pack(arrays, tmp_path / "a.parquet", workers=0, engine="auto", on_error="skip")
    parquet = ParquetDataset(tmp_path / "a.parquet", ["x"], cache=tmp_path / "unpacked")
    assert len(DataLoader(parquet, 2)) == 2
    assert len(DataLoader(open_dataset(tmp_path / "a.parquet", fields="y"), 2)) == 2
    feedline.pack(arrays, tmp_path / "a.tar", workers=0)
    table = TarDataset(tmp_path / "a.tar", cache=False)
    remote = Remote(cache=tmp_path / "cache", cache_bytes="1 GB", storage_options={"anon": True})
    assert_type(remote.cache_stats().hit_rate, float)
    stream = TarDataset(str(tmp_path / "a.tar"), remote=remote).stream()
    assert_type(table, TarDataset)
    assert_type(stream, ShardStream)
    assert len(DataLoader(table, 2)) == 2
    assert sum(1 for _ in DataLoader(stream, None)) == 4


def encode(one: str) -> list[int]:
    return list(one.encode())


def test_tokens(tmp_path: Path) -> None:
    texts = ["to be", "or not to be"]
    path = tmp_path / "tokens.bin"
    written = text.write_tokens(texts, path, encode, append_eos=0, dtype="uint16", workers=0)
    assert_type(written.token_count, int)
    with text.TokenWriter(tmp_path / "more.bin", dtype=np.uint16, end_token=0) as writer:
        writer.write([[1, 2, 0], np.arange(3)])
    dataset = text.TokenDataset([path, tmp_path / "more.bin"], block=4, positions="document", segment_ids=True)
    for batch in DataLoader(dataset, batch_size=2, shuffle=True):
        assert text.packing.cu_seqlens(batch["segment_ids"]).cu_seqlens[-1] == batch["tokens"].numel()
    assert_type(dataset.documents, text.TokenDocuments)
    assert int(dataset.documents.lengths.sum()) == dataset.token_count
    assert_type(text.verify(path), text.TokenFile)
    assert len(text.tokenize(texts, encode)) == 2


def test_images() -> None:
    pipeline = images.Compose(
        [
            images.Decode(),
            images.Resize(24),
            images.CenterCrop((16, 16)),
            images.RandomResizedCrop(16, scale=(0.5, 1), ratio=(0.9, 1.1)),
            images.HorizontalFlip(0.3),
            images.ColorJitter(0.4, contrast=(0.5, 1.5), hue=0.1),
            images.Normalize(images.IMAGENET_MEAN, images.IMAGENET_STD, dtype="float16"),
        ],
        decode="cpu",
    )
    pixels = np.zeros((4, 32, 48, 3), np.uint8)
    (batch, labels), *_ = Loader(ArrayDataset((pixels, np.arange(4)), transform=pipeline.on(0)), 4)
    assert (batch.shape, len(labels)) == ((4, 3, 16, 16), 4)
    assert images.ToChannelsFirst()(pixels[0]).shape == (3, 32, 48)


def test_audio() -> None:
    spectrum = audio.LogMel(16_000, n_fft=400, hop_length=160, n_mels=40)
    pipeline = audio.Compose(
        [audio.RandomClip(0.5, short="repeat"), audio.CenterClip(0.25), audio.Mono(), audio.Resample(16_000), spectrum],
        rate=8000,
    )
    sounds = np.zeros((4, 2, 8000), np.float32)
    (batch, labels), *_ = Loader(ArrayDataset((sounds, np.arange(4)), transform=pipeline.on(0)), 4)
    assert (batch.shape, len(labels)) == ((4, 1, 40, spectrum.steps(4000)), 4)
    assert audio.length_mask([1, 2]).shape == (2, 2)
    assert_type(audio.durations([], cache=False, damaged=0.0).tolist(), Any)
    assert_type(audio.AudioInfo("WAV", 8000, 1, 16_000).seconds, float)


def test_samplers_and_collate() -> None:
    squares, labels = Squares(), [0, 1] * 6
    DataLoader(squares, 4, sampler=RandomSampler(squares, seed=1))
    DataLoader(squares, 4, sampler=DistributedSampler(squares, num_replicas=2, rank=0, tail="drop"))
    DataLoader(
        squares,
        4,
        shuffle=True,
        rank=0,
        world_size=2,
        data_dims=None,
        mesh=None,
        check=0,
        mesh_timeout_s=60,
        fields=[1],
    )
    Loader(np.arange(8), 2, rank=1, world_size=2, mesh=None, data_dims=None, check=None, fields=[0])
    DataLoader(squares, 4, sampler=distribute(BalancedSampler(labels), rank=0, world_size=2, tail="exact"))
    DataLoader(squares, batch_sampler=StratifiedBatchSampler(labels, 4, mode="each"))
    DataLoader(squares, batch_sampler=BalancedBatches(attention_cost(labels, linear=8.0), 4, world_size=2, rank=1))
    DataLoader(squares, batch_sampler=BalancedBatches({"text": labels}, max_cost={"text": 40}, micro_batches=2))
    DataLoader(squares, batch_sampler=[[0, 1], [2]], collate_fn=first)
    Loader([np.arange(2), np.arange(3)], 2, collate_fn=pad())
    Loader(list(range(12)), batch_sampler=StratifiedBatchSampler(labels, 4), engine="auto", shard=True)


def test_errors_and_states() -> None:
    squares = Squares()
    policy = Policy({OSError: Retry(3, then="skip")}, otherwise=Skip())
    loader = DataLoader(squares, 4, on_error=policy, seed=3, memory_budget="1GB")
    loader.on_error = lambda failure: "skip" if failure.index == 3 else "raise"
    batches = iter(loader)
    next(batches)
    state = loader.state_dict()
    assert_type(state, dict[str, Any])
    other = DataLoader(squares, 4, on_error="skip", seed=3, engine="auto")
    other.load_state_dict(state)
    assert len(list(other)) == 2
    assert [fault.index for fault in other.faults] == []
    numbers = Loader(list(range(12)), 4, on_error=policy, shuffle=True)
    numbers.load_state_dict(numbers.state_dict())
    numbers.set_epoch(2)
    numbers.on_stats(lambda stats: stats.flat(), every_s=60.0)
    with numbers.live():
        assert numbers.stats().total.batches >= 0
    numbers.close()
    with DataLoader(squares, 4) as entered:
        assert_type(entered, DataLoader[tuple[torch.Tensor, int]])
    with Loader(list(range(12)), 4) as also_entered:
        assert len(list(also_entered)) == 3


def test_arguments_that_type_checkers_reject() -> None:
    squares, labels = Squares(), [0, 1] * 6
    with pytest.raises(BadOption):
        DataLoader(squares, engine="threads")  # type: ignore[arg-type]
    with pytest.raises(BadOption):
        Loader([1], engine="processes")  # type: ignore[arg-type]
    with pytest.raises(BadOption):
        DataLoader(squares, on_error="ignore")  # type: ignore[arg-type]
    with pytest.raises(BadOption):
        DataLoader(Counting(), shard="all")  # type: ignore[arg-type]
    with pytest.raises(BadOption):
        StratifiedBatchSampler(labels, 4, mode="every")  # type: ignore[arg-type]
    with pytest.raises(BadOption):
        distribute(RandomSampler(squares), tail="cut")  # type: ignore[arg-type]


def test_measurements_of_a_loader(tmp_path: Path) -> None:
    loader = Loader(np.arange(8), 4)
    with feedline.record(loader, tmp_path / "run.json"):
        for _ in loader:
            with feedline.stage("step"):
                pass
    assert_type(feedline.doctor(loader), Findings)
    assert_type(feedline.doctor(tmp_path / "run.json")[0:1], list[Finding])
    stats = assert_type(loader.stats(), Stats)
    assert_type(stats.verdict, str)
    assert_type(stats.epoch.waits, dict[str, float])
    assert_type(stats.epoch.body.p99, float)
    assert_type(stats.flat(), dict[str, float])
    assert stats.total.batches == stats["batches"] == 2
    assert assert_type(Recording.load(tmp_path / "run.json"), Recording).stats().total.samples == 8
