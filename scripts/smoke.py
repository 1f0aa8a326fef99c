"""Try one extra in an environment that has nothing else: `python smoke.py EXTRA`, or no name for no extra.

It imports nothing of the repository, only what is installed. Each function is named after its extra, and asserts on one
tiny use of it.
"""

from __future__ import annotations

import importlib
import io
import json
import struct
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import feedline
from feedline import datasets

SAMPLES: list[dict[str, Any]] = [{"x": np.arange(4, dtype=np.float32) + number, "y": number} for number in range(6)]


class Squares:
    """A dataset that worker processes can import."""

    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> int:
        return index**2


def nothing(folder: Path) -> None:
    """Nothing but NumPy: worker processes, and every command says what it is missing."""
    found = [value for batch in feedline.Loader(Squares(), 4, workers=2, seed=0) for value in batch]
    assert sorted(found) == [index**2 for index in range(20)]
    assert "cores" in _command("doctor")
    assert "feedline[" in _command("demo", status=1)
    np.save(folder / "a.npy", np.zeros((9, 2)))
    assert "9" in _command("inspect", folder / "a.npy")
    assert "9 samples" in _command("pack", folder / "a.npy", folder / "b", "--format", "npy", "--workers", "0")


def torch(folder: Path) -> None:
    """Use the drop-in with worker processes."""
    loader = feedline.DataLoader(Squares(), batch_size=4, num_workers=2)
    assert [value for batch in loader for value in batch.tolist()] == [index**2 for index in range(20)]
    assert "data" in loader.stats().verdict or loader.stats().verdict


def jax(folder: Path) -> None:
    """Put batches on a device."""
    device = importlib.import_module("jax").devices("cpu")[0]
    batch = next(iter(feedline.Loader(datasets.ArrayDataset(np.arange(8.0)), 4, device=device)))
    assert np.asarray(batch).tolist() == [0.0, 1.0, 2.0, 3.0]


def images(folder: Path) -> None:
    """Write a JPEG with Pillow, and decode it."""
    path = folder / "a.jpg"
    importlib.import_module("PIL.Image").new("RGB", (32, 24), (200, 10, 10)).save(path)
    importlib.import_module("simplejpeg")
    assert feedline.images.decode_image(path.read_bytes()).shape == (24, 32, 3)


def jxl(folder: Path) -> None:
    """Decode a JPEG XL of 6 x 4 pixels."""
    data = bytes.fromhex("ff0a18401009080401005c004b188b15c24943593e80130100008e0600001802000000")
    assert feedline.images.decode_image(data)[3, 5].tolist() == [10, 200, 30]


def audio(folder: Path) -> None:
    """Write a file, and read and resample it."""
    sound = np.sin(np.linspace(0, 500, 8000)).astype(np.float32)
    importlib.import_module("soundfile").write(folder / "a.wav", sound, 8000)
    decoded, rate = feedline.audio.decode_audio((folder / "a.wav").read_bytes())
    assert (len(decoded.ravel()), rate) == (8000, 8000)
    importlib.import_module("soxr")


def video(folder: Path) -> None:
    """Write a file with PyAV, and take a clip out of it."""
    with importlib.import_module("av").open(str(folder / "a.mp4"), "w") as file:
        stream = file.add_stream("mpeg4", rate=10)
        stream.width, stream.height, stream.pix_fmt = 32, 16, "yuv420p"
        for shade in range(10):
            pixels = np.full((16, 32, 3), shade * 20, np.uint8)
            frame = importlib.import_module("av").VideoFrame.from_ndarray(pixels, format="rgb24")
            file.mux(stream.encode(frame))
        file.mux(stream.encode())
    clip = feedline.video.Compose([feedline.video.CenterClip(4)])((folder / "a.mp4").read_bytes())
    assert clip.shape[0] == 4


def hdf5(folder: Path) -> None:
    """Pack and read."""
    _pack_and_read(folder / "a.h5", datasets.HDF5Dataset)
    importlib.import_module("deflate")


def lance(folder: Path) -> None:
    """Write with Lance, and read."""
    pa = importlib.import_module("pyarrow")
    importlib.import_module("lance").write_dataset(pa.table({"x": [1, 2]}), folder / "a.lance")
    assert datasets.LanceDataset(folder / "a.lance", "x")[1] == 2


def lmdb(folder: Path) -> None:
    """Pack and read."""
    _pack_and_read(folder / "a.lmdb", datasets.LMDBDataset)


def parquet(folder: Path) -> None:
    """Pack and read."""
    _pack_and_read(folder / "a.parquet", datasets.ParquetDataset)


def tar(folder: Path) -> None:
    """Read a compressed shard with a field in msgpack and one in CBOR."""
    msgpack, cbor2 = importlib.import_module("msgpack"), importlib.import_module("cbor2")
    contents = {"0.mp": msgpack.packb({"a": 1}), "0.cbor": cbor2.dumps([2, 3])}
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as shard:
        for name, content in contents.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            shard.addfile(member, io.BytesIO(content))
    packed = importlib.import_module("zstandard").ZstdCompressor().compress(made.getvalue())
    (folder / "a.tar.zst").write_bytes(packed)
    (sample,) = list(feedline.Loader(datasets.TarDataset(folder / "a.tar.zst").stream(), None))
    assert (sample["mp"], sample["cbor"]) == ({"a": 1}, [2, 3])


def text(folder: Path) -> None:
    """Tokenize a text with a tokenizer.json."""
    tokenizers = importlib.import_module("tokenizers")
    model = tokenizers.models.WordLevel({"a": 0, "b": 1, "?": 2}, unk_token="?")
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.save(str(folder / "tokenizer.json"))
    written = feedline.text.write_tokens(
        [{"text": "a b a"}, {"text": "c"}], folder / "a.bin", str(folder / "tokenizer.json"), workers=0
    )
    assert (written.token_count, written.document_count) == (4, 2)


def sql(folder: Path) -> None:
    """Read a table of DuckDB."""
    importlib.import_module("psycopg")
    with importlib.import_module("duckdb").connect(str(folder / "a.duckdb")) as database:
        database.execute("create table t as select range as x from range(5)")
    dataset = datasets.SQLDataset(f"duckdb:///{folder / 'a.duckdb'}", "select x from t order by x", key="x")
    assert [sample["x"] for sample in dataset] == [0, 1, 2, 3, 4]


def s3(folder: Path) -> None:
    """Name a store. Nothing is opened before the first sample."""
    _remote("s3fs", "s3://bucket/a.parquet")


def gs(folder: Path) -> None:
    """Name a store."""
    _remote("gcsfs", "gs://bucket/a.parquet")


def hf(folder: Path) -> None:
    """Name a store."""
    _remote("huggingface_hub", "hf://datasets/someone/something/a.parquet")


def tfrecord(folder: Path) -> None:
    """Read a file with the right checksums, and one with a wrong one."""
    value = importlib.import_module("google_crc32c").value

    def masked(data: bytes) -> bytes:
        crc = value(data)
        return struct.pack("<I", (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF)

    length = struct.pack("<Q", 3)
    whole = length + masked(length) + b"abc" + masked(b"abc")
    (folder / "a.tfrecord").write_bytes(whole)
    assert len(datasets.TFRecordDataset(folder / "a.tfrecord", parse=bytes)) == 1
    (folder / "b.tfrecord").write_bytes(whole.replace(b"abc", b"abd"))
    try:
        datasets.TFRecordDataset(folder / "b.tfrecord", parse=bytes)[0]
    except feedline.errors.CorruptSource:
        return
    raise AssertionError("damage was not noticed")


def json_lines(folder: Path) -> None:
    """Read a line."""
    importlib.import_module("orjson")
    (folder / "a.jsonl").write_text(json.dumps({"a": 1.5}) + "\n")
    assert datasets.JSONLines(folder / "a.jsonl")[0] == {"a": 1.5}


def redis(folder: Path) -> None:
    """Name a stream. Nothing is opened before the first sample."""
    importlib.import_module("redis")
    assert "redis" in repr(datasets.RedisStream("redis://localhost:1", "stream")).lower()


def ray(folder: Path) -> None:
    """Import it. A cluster takes longer than all other extras together."""
    importlib.import_module("feedline.workers.ray.cluster")
    importlib.import_module("ray")


def notebook(folder: Path) -> None:
    """Start workers that know a class only by its value."""
    importlib.import_module("cloudpickle")
    loader = feedline.Loader(Squares(), 5, workers=1, start_method="spawn")
    assert sum(len(batch) for batch in loader) == 20


def demo(folder: Path) -> None:
    """Compare with torch's loader."""
    (folder / "own.py").write_text("def dataset():\n    return list(range(256))\n")
    assert "samples/s" in _command(
        "bench", f"{folder / 'own.py'}:dataset", "--workers", "0", "--rounds", "1", "--seconds", "20"
    )


def lab(folder: Path) -> None:
    """Import the server and its page."""
    importlib.import_module("feedline.tools.lab.server")


def pack(folder: Path) -> None:
    """Pack a folder of pictures."""
    (folder / "pictures" / "a").mkdir(parents=True)
    importlib.import_module("PIL.Image").new("RGB", (32, 24)).save(folder / "pictures" / "a" / "a.png")
    assert "1 samples" in _command("pack", folder / "pictures", folder / "shards", "--format", "tar", "--workers", "0")


def gpu(folder: Path) -> None:
    """Import torchvision, which must fit torch."""
    importlib.import_module("torchvision.io")


TRIED: dict[str, Callable[[Path], None]] = {
    function.__name__.replace("json_lines", "json"): function
    for function in (
        torch, jax, images, jxl, audio, video, hdf5, lance, lmdb, parquet, tar, text, sql, s3, gs, hf, tfrecord,
        json_lines, redis, ray, notebook, demo, lab, pack, gpu, nothing,
    )
}  # fmt: skip
GROUPS = {
    "remote": ("s3", "gs", "hf"),
    "tools": ("demo", "lab", "pack"),
    "all": tuple(sorted(set(TRIED) - {"nothing", "gpu"})),
}


def _pack_and_read(out: Path, source: Callable[[Path], object]) -> None:
    feedline.pack(SAMPLES, out, workers=0)
    loader = feedline.Loader(source(out), 3, workers=1)
    batches = list(loader)
    assert [int(value) for batch in batches for value in batch["y"]] == list(range(6))
    assert np.array_equal(batches[0]["x"][2], SAMPLES[2]["x"])


def _remote(package: str, address: str) -> None:
    importlib.import_module(package)
    importlib.import_module("fsspec")
    importlib.import_module("feedline.datasets.storage")
    assert importlib.import_module("fsspec").get_filesystem_class(address.partition(":")[0])


def _command(*arguments: object, status: int = 0) -> str:
    command = [sys.executable, "-m", "feedline", *map(str, arguments)]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    assert done.returncode == status, done.stderr
    return done.stdout + done.stderr


def main(extra: str = "") -> None:
    """Try an extra, or each one of a group in a process of its own."""
    for name in GROUPS.get(extra, ()):
        subprocess.run([sys.executable, __file__, name], check=True)
    if extra in GROUPS:
        return
    with tempfile.TemporaryDirectory(prefix="feedline-smoke-") as folder:
        TRIED[extra or "nothing"](Path(folder))
    sys.stdout.write(f"{extra or 'no extras'}: works\n")


if __name__ == "__main__":
    assert Path(feedline.__file__).is_relative_to(sys.prefix), f"{feedline.__file__} is not the installed package"
    main(*sys.argv[1:])
