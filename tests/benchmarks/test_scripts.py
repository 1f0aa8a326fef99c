"""Every benchmark runs with tiny parameters, so that none can rot. The results here are meaningless.

Those that take more than a second run in `make slow`; all of them are imported, and parse the commands in the docs.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import importlib.util
import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")


BRIEF = ["--rounds", "1"]
STEADY = [*BRIEF, "--seconds", "0.01", "--warmup", "2"]
BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


# Any: rows are JSON.
def rows_of(name: str, flags: list[str], folder: Path) -> list[dict[str, Any]]:
    out = folder / "rows.jsonl"
    assert importlib.import_module(f"benchmarks.{name}").main([*flags, "--json", str(out)]) == 0
    rows = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    assert rows[0]["kind"] == "machine"
    assert {row["kind"] for row in rows[1:]} == {"round", "summary"}
    return rows


INLINE, PROCESS, THREAD = ({"torch", f"feedline/{engine}"} for engine in ("inline", "process", "thread"))
IMAGES = "--images 4 --batch-size 2 --workers 1 --engine thread --data DATA"
HELD = "--workers 1 --string-count 2000 --batch-size 16"
PEERLESS = "--batch-size 4 --workers 0 --data DATA --peers"
SCRIPTS: list[tuple[str, str, str, set[str], str]] = [
    ("w1_tiny", "--samples 1200 --workers 0 --dataset tensors", "batches_per_s", INLINE, ""),
    ("w1_tiny", "--samples 1200 --workers 1 --dataset map", "worker_cpu_us", {*PROCESS, "loop"}, ""),
    ("w1_tiny", "--samples 2000 --workers 2 --dataset generator range split", "batches_per_s", PROCESS, ""),
    (
        "w1_tiny",
        "--samples 2000 --workers 0 --dataset nothing --with no-restarts skip retry",
        "cpu_s_per_1000",
        {*INLINE, *(f"feedline/inline, {extra}" for extra in ("no-restarts", "skip", "retry"))},
        "",
    ),
    ("w2_transport", "--size 32 --batch-size 4 --workers 1", "gb_per_s", PROCESS | THREAD, ""),
    *(
        ("w3_images", f"{IMAGES} --decoder {decoder}", "samples_per_s", THREAD, "simplejpeg")
        for decoder in ("pillow", "opencv", "simplejpeg", "feedline")
    ),
    *(
        (
            "w3_images",
            f"{IMAGES} --decoder feedline --against opencv --peers {peer}",
            "samples_per_s",
            {*THREAD, f"{peer}/process", f"{peer}/thread"},
            peer,
        )
        for peer in ("grain", "spdl")
    ),
    *(
        ("w3_images", f"{IMAGES} --recipe {name}", "samples_per_s", THREAD, "torchvision")
        for name in ("randaugment", "dino")
    ),
    (
        "w4_start",
        "--start-method fork --workers 1 --dataset-mb 1 --batches 4 --batch-size 2",
        "restart_kept",
        PROCESS,
        "PIL",
    ),
    (
        "w6_stragglers",
        "--batches 4 --batch-size 2 --usual-ms 0.1 --slow-ms 1 --workers 2 --seed 1",
        "share_of_ideal",
        PROCESS | THREAD,
        "",
    ),
    ("w7_memory", HELD, "peak", PROCESS, ""),
    ("w7_memory", f"{HELD} --strings", "peak", PROCESS, ""),
    ("w9_listing", "--files 500 --data DATA", "files", {"torch", "feedline", "feedline/cache"}, ""),
    (
        "w12_retention",
        "--workers 1 --batches 6 --batch-size 2 --image-mb 0.5 --spike-mb 8 --case forks --engine thread",
        "peak",
        THREAD,
        "",
    ),
    ("w13_tokens", f"--tokens 20000 --block 64 {PEERLESS}", "samples_per_s", INLINE, ""),
    *(
        (
            "w14_packing",
            f"--documents 600 --length 256 --kind {kind} {PEERLESS}",
            "full",
            {"torch", "feedline/inline, list", "feedline/inline, known"},
            "",
        )
        for kind in ("whole", "cut")
    ),
    ("w15_json_lines", f"--shards 2 --texts 20 --length 64 {PEERLESS}", "samples_per_s", INLINE, ""),
    (
        "w16_operators",
        "--samples 4000 --checked 300 --batch-size 8 --peers torchdata --workers 0",
        "samples_per_s",
        {*INLINE, "torchdata"},
        "torchdata",
    ),
    (
        "w18_audio",
        "--count 2 --batch-size 2 --workers 0 --files 16k --peers seek --data DATA",
        "samples_per_s",
        {*INLINE, "seek"},
        "soundfile",
    ),
    (
        "w19_video",
        f"--files 2 --length 40 --width 64 --height 48 --size 16 --frames 4 --gop 12 {PEERLESS}",
        "samples_per_s",
        INLINE,
        "av",
    ),
    *(
        (
            "state_cost",
            f"--sizes 2000 --workers 0 --steps 3 --dataset {dataset} --data DATA",
            "restore_ms",
            {"torchdata", "feedline"},
            "torchdata",
        )
        for dataset in ("nothing", "tokens")
    ),
]
NOT_STEADY = {"w4_start", "w7_memory", "w9_listing", "w12_retention", "state_cost"}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")  # by torchdata
@pytest.mark.parametrize(("name", "flags", "figure", "loaders", "package"), SCRIPTS)
def test_scripts_measure_and_compare(
    name: str, flags: str, figure: str, loaders: set[str], package: str, tmp_path: Path
) -> None:
    pytest.importorskip(package or "torch")
    data = tmp_path / "data"
    data.mkdir()
    asked = [str(data) if flag == "DATA" else flag for flag in shlex.split(flags)]
    rows = rows_of(name, [*(BRIEF if name in NOT_STEADY else STEADY), *asked], tmp_path)
    found = [row for row in rows if row["kind"] == "summary"]
    base = "torch" if "torch" in loaders else "torchdata"
    assert {row["side"] for row in found} == loaders
    for row in found:
        assert row["figures"][figure]["median"] >= 0
        assert (base in row["ratios"]) == (row["side"] != base)


@pytest.mark.slow
def test_auto_setting(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--rounds", "1", "--seconds", "0.01", "--settle", "0.1", "--most", "1", "--dataset", "busy"]
    assert importlib.import_module("benchmarks.auto_setting").main([*flags, "--batch-us", "50"]) == 0
    out = capsys.readouterr().out
    assert re.findall(r"^(inline|process|thread|auto)\b.* \d+ % ", out, re.M) == ["inline", "process", "thread", "auto"]
    assert "data-bound" in out or "compute-bound" in out


@pytest.mark.slow
@pytest.mark.parametrize("feed", [[], ["--decode", "opencv"], ["--library", "torch", "--decode", "opencv"]])
def test_training(feed: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("cv2")
    flags = ["--device", "cpu", "--network", "none", "--images", "16", "--batch-size", "2", "--workers", "0"]
    main = importlib.import_module("benchmarks.gpu.training").main
    assert main([*flags, *feed, "--steps", "2", "--repeats", "1", "--data", str(tmp_path)]) == 0
    assert re.search(r"\d images/s +wait [\d.]+ +CPU", capsys.readouterr().out)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")  # the webdataset package leaves them
@pytest.mark.parametrize(
    ("store", "package"),
    [
        ("npy", "numpy"),
        ("hdf5", "h5py"),
        ("lmdb", "lmdb"),
        ("parquet", "pyarrow"),
        ("tar", "webdataset"),
        ("files", "PIL"),
        ("csv", "pandas"),
    ],
)
def test_stores(store: str, package: str, tmp_path: Path) -> None:
    pytest.importorskip(package)
    script = importlib.import_module("benchmarks.w8_stores")
    if importlib.util.find_spec("tqdm"):
        importlib.import_module("tqdm").tqdm.monitor_interval = 0  # its progress bars leave a thread behind
    flags = ["--store", store, "--samples", "256", "--batch-size", "4", "--data", str(tmp_path), "--workers", "0"]
    # Without litdata, which leaves files open until the program ends.
    rows = rows_of("w8_stores", [*STEADY, *flags, "--peers", "hand", "same", "datasets", "webdataset"], tmp_path)
    ours = [row for row in rows if row["kind"] == "summary" and row["side"].startswith("feedline/inline")]
    assert {row["case"]["form"] for row in ours} == set(script.STORES[store])
    assert all(row["ratios"]["torch"]["samples_per_s"]["median"] > 0 for row in ours)
    assert all(row["figures"]["disk_mb"]["median"] > 0 for row in ours)
    gc.collect()


def test_balanced_steps(tmp_path: Path) -> None:
    flags = ["--ranks", "8", "--batch-size", "4", "--steps", "32", "--costs", "lengths", "rows"]
    found = [row for row in rows_of("balanced_steps", [*BRIEF, *flags], tmp_path) if row["kind"] == "summary"]
    slowest = {(row["case"]["costs"], row["side"]): row["figures"]["slowest"]["median"] for row in found}
    for costs in ("lengths", "rows"):
        assert slowest[costs, "balanced"] < slowest[costs, "greedy"] < slowest[costs, "random"]


@pytest.mark.slow
def test_balanced_steps_of_real_training(tmp_path: Path) -> None:
    flags = ["--ranks", "2", "--batch-size", "2", "--steps", "3", "--costs", "training"]
    found = [row for row in rows_of("balanced_steps", [*BRIEF, *flags], tmp_path) if row["kind"] == "summary"]
    assert [row["side"] for row in found] == ["random", "buckets", "greedy", "balanced"]
    assert all(row["figures"]["tokens_per_s"]["median"] > 0 for row in found)


@pytest.mark.slow
def test_index_space(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--sampler", "random", "weighted", "--sizes", "2000", "--weights", "1000", "--torch-max", "1000"]
    rows = rows_of("w5_index_space", [*BRIEF, *flags], tmp_path)
    measured = [(row["case"]["sampler"], row["side"]) for row in rows if row["kind"] == "summary"]
    assert measured == [("random", "feedline"), ("weighted", "torch"), ("weighted", "feedline")]
    assert "not run: would need" in capsys.readouterr().out


@pytest.mark.slow
def test_object_storage(tmp_path: Path) -> None:
    pytest.importorskip("s3fs")
    pytest.importorskip("PIL")
    sizes = ["--shards", "3", "--jpegs", "7", "--windows", "20", "--window", "64", "--batch-size", "4"]
    flags = ["--latency-ms", "1", "--workers", "1", "--cache-share", "1e4", "--way", "feedline", "--data"]
    rows = rows_of("w20_object_storage", [*BRIEF, *sizes, *flags, str(tmp_path)], tmp_path)
    found = [row for row in rows if row["kind"] == "summary"]
    assert [(row["case"]["samples"], row["side"]) for row in found] == [
        ("jpeg", "feedline/stream"),
        ("tokens", "feedline/stream"),
    ]
    for row in found:
        figures = {name: spread["median"] for name, spread in row["figures"].items() if spread}
        assert figures["fetched"] == 1.0, "everything fits into the cache"
        assert figures["samples_per_s"] > 0
        assert figures["requests"] >= 3


@pytest.mark.slow
def test_json_lines_peers_give_the_same_batches(tmp_path: Path) -> None:
    """The rates of peers are comparable only if they deliver the same tokens."""
    pytest.importorskip("datasets")
    pytest.importorskip("torchdata")
    pytest.importorskip("tqdm").tqdm.monitor_interval = 0  # its progress bars leave a thread behind
    script = importlib.import_module("benchmarks.w15_json_lines")
    folder = tmp_path / "lines"
    script.write(1, 20, folder)
    options = ([str(path) for path in folder.iterdir()], script.of_words, 64)
    ours = next(iter(script.ours(*options, script.Loading(0, 4, "inline"))))["tokens"]
    for make in (script.usual, script.hugging_faces, script.torchdatas):
        batch = next(iter(make(*options, script.Loading(0, 4))))
        assert ((batch["tokens"] if isinstance(batch, dict) else batch) == ours).all()


def test_a_peer_that_is_not_installed_is_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    peers = importlib.import_module("benchmarks.peers")
    assert peers.installed(["json", "absent"], {"absent": "no_such_package"}) == ["json"]
    assert "absent is left out: no_such_package is not installed." in capsys.readouterr().err


@pytest.mark.slow
def test_scale_study(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = tmp_path / "scale.jsonl"
    small = ["--workers", "24", "--ranks", "4", "2", "3", "--nodes", "4", "--minutes", "22", "--depths", "2", "6"]
    flags = [*small, "--batch-s", "20", "--json", str(rows)]
    assert importlib.import_module("benchmarks.scale_study").main(flags) == 0
    cases = [json.loads(line) for line in rows.read_text(encoding="utf-8").splitlines()]
    assert [case["name"] for case in cases] == ["one rank", *["4 ranks"] * 2] * 2 + ["4 ranks"]
    assert all(case["restarts"] > 24 // 4 for case in cases), "two nodes were lost"
    pace = [case["of_ideal"] for case in cases]
    assert pace[4] > pace[1] > 0.3, "deeper prefetching outlasts the stragglers"
    assert pace[2] > pace[1], "fewer batches wait behind a straggler"
    assert "any order" in capsys.readouterr().out


def test_scale_study_detects_a_repeated_sample() -> None:
    study = importlib.import_module("benchmarks.scale_study")
    options = argparse.Namespace(seed=0, minutes=1.0)
    one = study.Study(study.Case("one rank", [1], 2, "unordered"), options)
    one.got.extend([3, 1, 3])
    with pytest.raises(study.LawBroken, match="twice"):
        one.check_all()


def test_numbers_may_be_written_in_scientific_notation() -> None:
    parser = importlib.import_module("benchmarks.flags").parser("doc", samples=100, workers=[0, 2])
    assert parser.parse_args(["--samples", "1e6", "--workers", "4"]).samples == 1_000_000
    assert parser.parse_args([]).workers == [0, 2]
    assert parser.parse_args(["--json"]).json == "-"


ROOT = BENCHMARKS.parent
COMMANDS = sorted(
    {
        (name, " ".join(flags.split()))
        for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]
        for name, flags in re.findall(r"`(?:python -m )?benchmarks\.([\w.]+)([^`]*)`", page.read_text(encoding="utf-8"))
    }
)


@pytest.mark.parametrize(("name", "flags"), COMMANDS)
def test_commands_in_the_docs_can_be_parsed(name: str, flags: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class Parsed(Exception):
        pass

    parse = argparse.ArgumentParser.parse_args

    def parse_only(parser: argparse.ArgumentParser, argv: list[str]) -> None:
        parse(parser, argv)
        raise Parsed

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", parse_only)
    with pytest.raises(Parsed):
        importlib.import_module(f"benchmarks.{name}").main(flags.split())


def test_every_script_is_in_the_readme() -> None:
    text = (BENCHMARKS / "README.md").read_text(encoding="utf-8")
    for path in BENCHMARKS.glob("*.py"):
        assert path.stem == "__init__" or f"`{path.stem}`" in text or f"`{path.name}`" in text


@pytest.mark.ray
@pytest.mark.timeout(400)
def test_ray_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("cv2")
    pytest.importorskip("ray.data")
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")  # no token in the home directory
    flags = [*BRIEF, "--images", "4", "--batch-size", "2", "--batches", "10", "--workers", "1", "--data", str(tmp_path)]
    found = {row["side"] for row in rows_of("ray_data", flags, tmp_path) if row["kind"] == "summary"}
    assert found == {"feedline/ray", "feedline/process", "ray/tasks", "ray/actors"}
