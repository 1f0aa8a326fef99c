"""Tests in an environment that lacks extras: `pytest -p tests.bare` skips tests that need a missing package.

In every other environment, a missing package is a failure, since it would hide tests. Here it hides most of them, so
the run fails if too few are left (`--least`). `noxfile.py` uses it.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Generator
from typing import Any

import pytest

from feedline.errors import MissingExtra

OPTIONAL = frozenset({
    "PIL", "accelerate", "av", "boto3", "cbor2", "cloudpickle", "cv2", "datasets", "deflate", "duckdb", "fsspec",
    "gcsfs",
    "google_crc32c", "h5py", "httpx", "jax", "lmdb", "mkdocs", "moto", "msgpack", "orjson", "pandas", "playwright",
    "psycopg",
    "pyarrow", "ray", "redis", "s3fs", "simplejpeg", "soundfile", "soxr", "starlette", "tokenizers", "torch",
    "torchdata", "torchvision", "transformers", "uvicorn", "webdataset", "yaml", "zstandard",
})  # fmt: skip
"""Packages that an environment may lack."""
_passed: Counter[str] = Counter()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--least", type=int, default=1, help="the least number of tests that must pass")


def missing_package(text: str) -> str | None:
    """Return the missing optional package that an error is about, if any."""
    found = re.findall(r"No module named '(\w+)[\w.]*'|import of (\w+) halted|needs the package '(\w+)", text)
    names = [name for names in found for name in names if name in OPTIONAL]
    return names[-1] if names else None


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Skip files that cannot be imported without an extra."""
    report = yield
    if report.outcome == "failed" and (name := missing_package(str(report.longrepr))):
        report.outcome = "skipped"
        report.longrepr = (str(collector.path), 0, f"Skipped: needs {name}")
    return report


# Any: pytest's class for a call is generic.
@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[Any]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Skip tests that fail because an extra is missing."""
    report = yield
    if report.failed and call.excinfo is not None:
        error = call.excinfo.value
        about_extra = isinstance(error, (MissingExtra, ModuleNotFoundError))
        if about_extra and (name := missing_package(str(error)) or getattr(error, "module", None)):
            report.outcome = "skipped"
            report.longrepr = (str(item.path), 0, f"Skipped: needs {name}")
    return report


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.when == "call":
        _passed[report.outcome] += 1


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Fail if nearly everything was skipped."""
    least: int = session.config.getoption("--least")
    if exitstatus == 0 and not session.config.option.collectonly and _passed["passed"] < least:
        sys.stderr.write(f"\nonly {_passed['passed']} tests passed, and at least {least} should\n")
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
