"""What happened so far, in numbers."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Counters:
    """What happened so far; shown by `stats()`."""

    batches: int = 0
    copied_out: int = 0
    """Batches copied into ordinary memory because slots were short."""
    overflowed: int = 0
    """Batches that came in memory of their own because they had no slot or did not fit."""
    relieved: int = 0
    """Waiting tasks that went from a late worker to an idle one."""
    run_ahead: int = 0
    """Tasks begun beyond the window while an early batch was late."""
    failures: int = 0
    restarts: int = 0
    """Workers that were replaced because they died or were stuck."""
    recycled: int = 0
    """Workers that were replaced because they had taken too much memory."""
    wait_ns: int = 0
    """Time the training loop spent waiting."""
