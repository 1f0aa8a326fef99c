"""The versions that feedline promises to work with: `make matrix`, or `nox --list` and `nox -s SESSION`.

Sessions run one after the other, each in an environment of its own with the wheel's dependencies and nothing of the
repository's .venv. Pythons that are not installed are skipped. `nox -s SESSION -- tests/samplers` selects tests.
"""

from __future__ import annotations

import os
import platform

import nox

PYTHONS = ("3.10", "3.11", "3.12", "3.13")
CONSTRAINTS = "requirements/constraints.txt"
RUNNER = ("pytest>=8.2", "pytest-timeout>=2.3", "hypothesis>=6.100")
TORCH_FLOOR, TORCH_NEWEST = "torch==2.4.*", "torch"
NUMPY_FLOOR, NUMPY_NEWEST = "numpy==1.24.*", "numpy>=2,<3"
QUICK = (
    "tests/types", "tests/randomness", "tests/samplers", "tests/collate", "tests/memory", "tests/schedulers",
    "tests/system", "tests/delivery", "tests/simulation", "tests/test_errors.py", "tests/test_messages.py",
    "tests/test_layering.py",
)  # fmt: skip
"""Tests that start few processes: minutes instead of an hour for all sessions."""
WITH_TORCH = (*QUICK, "tests/loader", "tests/parity", "tests/textbook")

nox.options.default_venv_backend = "venv"
nox.options.error_on_missing_interpreters = False
nox.options.sessions = ["no_extras", "numpy_floor", "numpy_newest", "torch_pinned", "torch_floor", "torch_newest"]


def run_tests(session: nox.Session, tests: tuple[str, ...], *, least: int) -> None:
    """Run tests against the installed package; those that need a package that is not there are skipped."""
    options = ("-q", "-p", "tests.bare", f"--least={least}", "-p", "no:cacheprovider", "-r", "fE")
    chosen = tuple(session.posargs) or tests
    few = ("--least=1",) if session.posargs else ()
    session.run("python", "-m", "pytest", *options, *few, "-m", "not slow and not ray and not gpu", *chosen)


@nox.session(python=PYTHONS)
def no_extras(session: nox.Session) -> None:
    """The package with NumPy alone."""
    session.install(".", *RUNNER)
    run_tests(session, QUICK, least=900)


@nox.session(python="3.10")
def numpy_floor(session: nox.Session) -> None:
    """The oldest NumPy that pyproject.toml allows, on the oldest Python."""
    session.install(".", NUMPY_FLOOR, *RUNNER)
    run_tests(session, QUICK, least=900)


@nox.session(python="3.13")
def numpy_newest(session: nox.Session) -> None:
    """The newest NumPy, on the newest Python."""
    session.install(".", NUMPY_NEWEST, *RUNNER)
    run_tests(session, QUICK, least=900)


@nox.session(python="3.11")
def torch_pinned(session: nox.Session) -> None:
    """The torch that development uses, and no other extra."""
    session.install(".[torch]", *RUNNER, "-c", CONSTRAINTS)
    run_tests(session, WITH_TORCH, least=1500)


@nox.session(python="3.10")
def torch_floor(session: nox.Session) -> None:
    """The oldest torch that pyproject.toml allows. It knows no NumPy 2."""
    skip_builds_for_cuda(session)
    session.install(".", TORCH_FLOOR, "numpy<2", *RUNNER)
    run_tests(session, WITH_TORCH, least=1500)


@nox.session(python="3.13")
def torch_newest(session: nox.Session) -> None:
    """The newest torch."""
    skip_builds_for_cuda(session)
    session.install(".", TORCH_NEWEST, *RUNNER)
    run_tests(session, WITH_TORCH, least=1500)


def skip_builds_for_cuda(session: nox.Session) -> None:
    """Skip, unless the machine is willing to download torch for CUDA.

    On Linux with x86-64, the package index has torch only in builds for CUDA, which do not load without the libraries
    that they bring: some gigabytes. A pip that is configured with an index of builds for CPUs needs none of them.
    """
    has_builds_for_cpus = platform.system() != "Linux" or platform.machine() != "x86_64"
    if not has_builds_for_cpus and os.environ.get("FEEDLINE_TORCH_DOWNLOAD") != "1":
        session.skip("Here pip installs torch with CUDA, some gigabytes. FEEDLINE_TORCH_DOWNLOAD=1 runs it anyway.")
