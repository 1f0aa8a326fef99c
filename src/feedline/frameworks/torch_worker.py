"""How a worker becomes what torch calls a worker: `get_worker_info()`, in processes and in threads."""

from __future__ import annotations

import os
import threading
from typing import Any

from torch.utils.data._utils import worker as torch_worker

from feedline.types import WorkerIdentity


def worker_info(worker: WorkerIdentity, dataset: Any) -> Any:
    """Return what `get_worker_info()` is to answer in this worker."""
    info = torch_worker.WorkerInfo
    fields: dict[str, Any] = {"id": worker.id, "num_workers": worker.count, "seed": worker.seed, "dataset": dataset}
    if worker.threaded and "worker_method" in getattr(info, "__dataclass_fields__", {}):
        fields["worker_method"] = "thread"
    return info(**fields)


def set_process_worker(info: Any) -> None:
    """Make `torch.utils.data.get_worker_info()` answer `info` in this process."""
    _install()
    torch_worker._worker_info = info


def set_thread_worker(info: Any) -> None:
    """Make `torch.utils.data.get_worker_info()` answer `info` on this thread, None to make it forget."""
    _install()
    torch_worker._feedline_thread.info = info  # type: ignore[attr-defined]


def has_asked() -> bool:
    """True if `get_worker_info()` was called on this thread."""
    return bool(torch_worker._feedline_thread.has_asked)  # type: ignore[attr-defined]


def forget_asking() -> None:
    """Let `has_asked` answer for what happens from now on."""
    torch_worker._feedline_thread.has_asked = False  # type: ignore[attr-defined]


def _install() -> None:
    """Teach torch's function about threads, and to remember that it was called.

    torch keeps the answer in a module global, which threads cannot share, and programs hold direct references to the
    function. So its code is exchanged, once, for code that asks the thread first; outside feedline's workers the
    answer is what it was.
    """
    with _installing:
        if "_feedline_thread" not in torch_worker.__dict__:
            torch_worker._feedline_thread = _ThreadInfo()  # type: ignore[attr-defined]
            torch_worker.get_worker_info.__code__ = _get_worker_info.__code__


_installing = threading.Lock()
if hasattr(os, "register_at_fork"):  # a thread worker may hold it while another loader forks
    os.register_at_fork(after_in_child=_installing._at_fork_reinit)  # type: ignore[attr-defined]


class _ThreadInfo(threading.local):
    info: Any = None
    has_asked = False


def _get_worker_info() -> Any:
    _feedline_thread.has_asked = True  # type: ignore[name-defined]  # noqa: F821  (torch's globals)
    return _feedline_thread.info or _worker_info  # type: ignore[name-defined]  # noqa: F821
