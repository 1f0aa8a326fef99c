from __future__ import annotations

import os
from pathlib import Path

import pytest

from feedline.system import limits
from feedline.system.limits import cpu_quota, memory_limit, own_groups, process_limit, usable_cores
from feedline.system.process import core_count


def groups(tmp_path: Path, listing: str, **files: str) -> list[Path]:
    """Create control groups; in file names __ stands for / and ___ for a dot."""
    for name, text in files.items():
        path = tmp_path / name.replace("___", ".").replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (tmp_path / "listing").write_text(listing)
    return own_groups(tmp_path, tmp_path / "listing")


def test_limits_of_a_control_group_and_its_parents(tmp_path: Path) -> None:
    found = groups(
        tmp_path, "0::/job/step\n", job__cpu___max="150000 100000\n", job__step__cpu___max="max 100000\n",
        job__pids___max="300\n", pids___max="max\n",
    )  # fmt: skip
    assert cpu_quota(found) == 1.5
    assert process_limit(found) == 300


def test_limits_of_the_first_version_of_control_groups(tmp_path: Path) -> None:
    found = groups(
        tmp_path, "4:cpu,cpuacct:/box\n3:pids:/box\n", cpu__box__cpu___cfs_quota_us="200000",
        cpu__box__cpu___cfs_period_us="100000", pids__box__pids___max="77",
    )  # fmt: skip
    assert cpu_quota(found) == 2
    assert process_limit(found) == 77


@pytest.mark.parametrize(("quota", "cores"), [(None, core_count()), (0.5, 1), (1.9, 1), (1000.0, core_count())])
def test_a_cpu_quota_is_rounded_down_to_whole_cores(
    quota: float | None, cores: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "cpu_quota", lambda groups: quota)
    assert usable_cores() == cores


@pytest.mark.parametrize(
    ("groups", "files", "limit"),
    [
        ("0::/\n", {"memory.max": "1048576\n"}, 1 << 20),
        ("0::/\n", {"memory.max": "max\n"}, None),
        ("0::/job/step\n", {"job/memory.max": "4096\n", "job/step/memory.max": "max\n"}, 4096),
        ("7:cpu,memory:/a/b\n3:pids:/x\n", {"memory/a/b/memory.limit_in_bytes": "8192\n"}, 8192),
        ("3:pids:/x\n", {"x/memory.max": "1\n"}, None),
        (None, {}, None),
    ],
)
def test_the_memory_of_the_control_groups_counts(
    groups: str | None, files: dict[str, str], limit: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = {f"/sys/fs/cgroup/{name}": text for name, text in files.items()}
    if groups is not None:
        texts["/proc/self/cgroup"] = groups

    def read(path: Path) -> str:
        if str(path) not in texts:
            raise FileNotFoundError(path)
        return texts[str(path)]

    monkeypatch.setattr(Path, "read_text", read)
    monkeypatch.setattr(Path, "exists", lambda path: str(path) in texts)
    limits._memory_limits.cache_clear()
    found = memory_limit()
    monkeypatch.undo()
    limits._memory_limits.cache_clear()
    assert found == (os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if limit is None else limit)
