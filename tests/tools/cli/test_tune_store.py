"""`feedline tune` estimates what training from remote shards costs, without fetching them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from feedline.datasets import Remote, TarDataset
from feedline.tools.cli.main import main
from tests.datasets.storage.servers import web_server

SIZE = 8_000_000


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for number in range(20):
        with (tmp_path / f"shard-{number:03d}.tar").open("wb") as file:
            file.truncate(SIZE)
    return tmp_path


def test_the_costs_of_each_way_to_shuffle_are_estimated(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with web_server(folder) as server:
        address = f"{server.address}/shard-{{000..019}}.tar"
        assert main(["tune", address, "--cache", "48MB", "--sample-bytes", "10KB", "--json"]) == 0
        asked = sum(request.stop - request.start for request in server.requests)
        assert asked < 0.2 * 20 * SIZE, "only sizes are requested, not shards"
        report = json.loads(capsys.readouterr().out)
        assert main(["tune", address, "--machines", "4", "--cache", "40000000"]) == 0
    assert (report["shards"], report["bytes"]) == (20, 20 * SIZE)
    by_code = {way["code"]: way for way in report["ways"]}
    stream, full = by_code[".stream(shuffle=True)"], by_code["DataLoader(dataset, shuffle=True)"]
    assert (stream["first_bytes"], stream["later_bytes"]) == (20 * SIZE, 14 * SIZE)
    assert stream["requests"] == 20 * 4, "pieces of 2 MiB"
    assert (full["first_bytes"], full["later_bytes"]) == (20 * SIZE, 14 * SIZE)
    assert full["requests"] == 22 + 14 * SIZE // 10_000, "pieces into the cache, then samples"
    table = capsys.readouterr().out.splitlines()
    stays = next(line for line in table if "shuffle=True)" in line)
    assert "38.1 MiB" in stays
    assert " 0 bytes" in stays, "a machine's shards fit into its cache"
    moves = next(line for line in table if "sticky=False" in line)
    assert " 0 bytes" not in moves
    assert any("Each of 4 machines, with a cache of 38.1 MiB" in line for line in table)


@pytest.mark.parametrize(("shards", "suggested"), [("{000..019}", "45.8MiB"), ("{000..001}", "8.0MiB")])
def test_datasets_accept_the_suggested_cache_size(
    shards: str, suggested: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with web_server(folder) as server:
        address = f"{server.address}/shard-{shards}.tar"
        assert main(["tune", address]) == 0
        found = re.search(r"--cache (\S+) shows", capsys.readouterr().out)
        assert found is not None
        assert found[1] == suggested
        assert main(["tune", address, "--cache", found[1]]) == 0
        TarDataset(address, remote=Remote(cache=folder / "cache", cache_bytes=found[1])).close()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["https://host/folder/"], "web servers do not list them"),
        (["memory://nothing/here-*.tar"], "No object fits"),
        (["memory://nothing/{0..9}.parquet"], "memory://nothing/0.parquet is not a tar shard"),
        (["memory://nothing/*.tar", "--cache", "much"], "much"),
        (["memory://nothing/*.tar", "--cache", "8MB"], "--cache=8000000 is less than 8.0 MiB"),
        (["memory://nothing/*.tar", "--seconds", "9"], "Leave out --seconds"),
        (["module:dataset", "--machines", "4"], "--machines applies only to shards in a store"),
    ],
)
def test_wrong_arguments_are_explained(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tune", *arguments]) == 1
    assert message in capsys.readouterr().err
