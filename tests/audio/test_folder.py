from __future__ import annotations

import io
import pickle
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import feedline
from feedline import DataLoader, Loader, audio, collate
from feedline.datasets import CachedDataset, ParquetDataset, TarDataset
from feedline.errors import BadOption, CorruptSource, SourceError
from tests.audio.sounds import RATE, decoded, encoded, sound, write_folder

TRAIN = audio.Compose([audio.RandomClip(0.25), audio.Resample(8000), audio.Mono()])


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return write_folder(tmp_path / "sounds", {"cat": 5, "dog": 4})


def test_a_sample_is_a_sound_and_a_label(root: Path) -> None:
    dataset = audio.AudioFolder(root)
    assert len(dataset) == 9
    assert dataset.classes == ["cat", "dog"]
    samples, label = dataset[6]
    assert label == 1
    assert np.array_equal(samples, decoded((root / "dog" / "1.flac").read_bytes()))
    assert repr(dataset) == "AudioFolder(9 samples of (file, class of 2))"


def test_the_rate_can_be_a_field(root: Path) -> None:
    (root / "cat" / "high.wav").write_bytes(encoded(sound(0.5, 2, 44_100), "WAV", 44_100))
    dataset = audio.AudioFolder(root, ("audio", "rate", "label"))
    assert {sample[1] for sample in dataset} == {RATE, 44_100}
    converted = audio.AudioFolder(root, ["rate", "path", "audio"], transform=TRAIN)
    assert {sample["rate"] for sample in converted} == {8000}
    assert {sample["audio"].shape for sample in converted} == {(1, 2000)}
    assert audio.AudioFolder(root, "rate")[0] == RATE
    assert audio.AudioFolder(root, "path")[0].endswith("0.flac")


def test_other_transforms_receive_the_whole_sample(root: Path) -> None:
    dataset = audio.AudioFolder(root, transform=lambda sample: (sample[0].shape, sample[1]))
    assert dataset[0] == ((1, RATE), 0)
    dataset.transform = audio.RandomClip(0.5)  # users may change it later
    assert dataset[0][0].shape == (1, 8000)


def test_other_labels_and_no_labels(root: Path) -> None:
    assert audio.AudioFolder(root, labels=None)[0].shape == (1, RATE)
    by_name = audio.AudioFolder(root, labels=lambda path: int(Path(path).stem))
    assert [label for _, label in by_name] == [0, 1, 2, 3, 4, 0, 1, 2, 3]
    with pytest.raises(BadOption, match="list of paths"):
        audio.AudioFolder([root])  # type: ignore[arg-type]  # on purpose
    with pytest.raises(SourceError, match="have no files"):
        audio.AudioFolder(root, extensions=".mp3")


def test_only_audio_files_are_listed(root: Path) -> None:
    (root / "cat" / "readme.txt").write_text("hello")
    assert len(audio.AudioFolder(root)) == 9


# Any: a batch.
def batches(loader: Any) -> list[tuple[Any, ...]]:
    return [tuple(torch.as_tensor(part).clone() for part in batch) for batch in loader]


def same(one: list[tuple[Any, ...]], other: list[tuple[Any, ...]]) -> bool:
    pairs = zip(one, other, strict=True)
    return all(torch.equal(a, b) for left, right in pairs for a, b in zip(left, right, strict=True))


def test_clips_are_the_same_on_every_engine(root: Path, engine: Any) -> None:
    dataset = audio.AudioFolder(root, transform=TRAIN)

    def epoch(engine: Any, workers: int) -> list[tuple[Any, ...]]:
        return batches(DataLoader(dataset, 2, shuffle=True, seed=5, engine=engine, num_workers=workers))

    expected = epoch("inline", 0)
    found = epoch(engine, 0 if engine == "inline" else 2)
    assert same(expected, found)
    assert not same(expected, batches(DataLoader(dataset, 2, shuffle=True, seed=6)))


def test_each_epoch_has_other_clips(root: Path) -> None:
    loader = DataLoader(audio.AudioFolder(root, transform=TRAIN), 9, seed=5)
    assert not same(batches(loader), batches(loader))


def test_resumes_exactly_at_every_step(root: Path, engine: Any) -> None:
    dataset = audio.AudioFolder(root, transform=TRAIN)
    workers = 0 if engine == "inline" else 2

    def made() -> Any:
        return DataLoader(dataset, 2, shuffle=True, seed=5, num_workers=workers, engine=engine)

    whole = batches(made())
    for step in range(len(whole)):
        loader = made()
        iterator = iter(loader)
        for _ in range(step):
            next(iterator)
        state = loader.state_dict()
        del iterator
        again = made()
        again.load_state_dict(state)
        assert same(batches(again), whole[step:])


def test_batches_without_torch(root: Path) -> None:
    sounds, labels = next(iter(Loader(audio.AudioFolder(root, transform=TRAIN), 4)))
    assert isinstance(sounds, np.ndarray)
    assert sounds.shape == (4, 1, 2000)
    assert labels.tolist() == [0, 0, 0, 0]


def test_padding_with_lengths(root: Path) -> None:
    loader = DataLoader(audio.AudioFolder(root), 3, collate_fn=collate.pad(axis=-1), num_workers=2)
    padded, labels, lengths = next(iter(loader))
    assert padded.shape == (3, 1, 20_000)
    assert lengths.tolist() == [16_000, 18_000, 20_000]
    assert labels.tolist() == [0, 0, 0]


@pytest.mark.parametrize("content", [b"", b"not audio", encoded(sound())[:2000], encoded(sound(), "WAV")[:2000]])
def test_the_error_names_a_damaged_file_which_can_be_skipped(root: Path, content: bytes, engine: Any) -> None:
    (root / "cat" / "victim.wav").write_bytes(content)
    dataset = audio.AudioFolder(root, transform=TRAIN)
    workers = 0 if engine == "inline" else 2
    with pytest.raises(CorruptSource, match=r"victim\.wav"):
        list(DataLoader(dataset, 2, engine=engine, num_workers=workers))
    loader = DataLoader(dataset, 2, engine=engine, num_workers=workers, on_error="skip")
    assert sum(len(labels) for _, labels in loader) == 9


def test_the_error_names_a_deleted_file(root: Path) -> None:
    dataset = audio.AudioFolder(root)
    (root / "cat" / "3.flac").unlink()
    with pytest.raises(SourceError, match=r"3\.flac"):
        dataset[3]


def test_it_can_be_pickled_and_cached(root: Path, tmp_path: Path) -> None:
    dataset = audio.AudioFolder(root, transform=audio.Compose([audio.CenterClip(0.25), audio.LogMel(RATE)]))
    again = pickle.loads(pickle.dumps(dataset))
    assert np.array_equal(again[3][0], dataset[3][0])
    cached = CachedDataset(dataset, disk=tmp_path / "cache")
    assert np.array_equal(cached[3][0], dataset[3][0])
    assert np.array_equal(cached[3][0], dataset[3][0])


# -- other sources -----------------------------------------------------------------------------------------------------


def write_shard(path: Path, count: int) -> None:
    with tarfile.open(path, "w") as archive:
        for number in range(count):
            members = {"flac": encoded(np.roll(sound(1.0), 99 * number)), "cls": str(number % 3).encode()}
            for ending, data in members.items():
                member = tarfile.TarInfo(f"{number:04d}.{ending}")
                member.size = len(data)
                archive.addfile(member, io.BytesIO(data))


@pytest.mark.parametrize("way", ["random", "stream"])
def test_fields_of_tar_shards(tmp_path: Path, engine: Any, way: str) -> None:
    write_shard(tmp_path / "a.tar", 8)
    source: Any = TarDataset(tmp_path / "a.tar", fields=("flac", "cls"), transform=TRAIN)
    dataset = source.stream() if way == "stream" else source
    workers = 0 if engine == "inline" else 2
    found = batches(DataLoader(dataset, 4, seed=3, engine=engine, num_workers=workers))
    assert sum(len(labels) for _, labels in found) == 8
    assert {sounds.shape[1:] for sounds, _ in found} == {(1, 2000)}
    if way == "random":
        assert same(found, batches(DataLoader(dataset, 4, seed=3)))


def test_the_error_names_a_damaged_field_of_a_shard(tmp_path: Path) -> None:
    write_shard(tmp_path / "a.tar", 2)
    data = bytearray((tmp_path / "a.tar").read_bytes())
    place = data.index(b"fLaC") + 3000
    data[place : place + 8] = bytes(8)
    (tmp_path / "a.tar").write_bytes(bytes(data))
    dataset = TarDataset(tmp_path / "a.tar", transform=audio.Compose([]))
    with pytest.raises(CorruptSource) as caught:
        list(dataset.stream())
    assert "'0000'" in "".join(caught.value.__notes__)


@pytest.mark.parametrize("is_struct", [False, True])
def test_bytes_in_parquet_files(tmp_path: Path, is_struct: bool) -> None:
    arrow = pytest.importorskip("pyarrow")
    import pyarrow.parquet

    files = [encoded(np.roll(sound(1.0), 99 * number)) for number in range(6)]
    sounds: list[Any] = [{"bytes": file, "path": None} for file in files] if is_struct else files
    pyarrow.parquet.write_table(arrow.table({"audio": sounds, "label": list(range(6))}), tmp_path / "a.parquet")
    dataset = ParquetDataset(tmp_path / "a.parquet", fields=("audio", "label"), transform=TRAIN)
    found = batches(DataLoader(dataset, 3, seed=3, num_workers=2))
    assert [labels.tolist() for _, labels in found] == [[0, 1, 2], [3, 4, 5]]
    assert found[0][0].shape == (3, 1, 2000)
    assert same(found, batches(DataLoader(dataset, 3, seed=3)))


def test_audio_in_pipes(root: Path) -> None:
    files = feedline.pipe(audio.AudioFolder(root)).map(audio.Compose([audio.CenterClip(0.5)], rate=RATE))
    assert [sample[0].shape for sample in files] == [(1, 8000)] * 9
