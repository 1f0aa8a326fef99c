"""The decisions of the machine: tuples that begin with one of these words."""

from __future__ import annotations

from typing import Any

GIVE = "give"
"""(GIVE, worker, task): submit the task; call `not_given` if it cannot be sent."""

TAKE_BACK = "take back"
"""(TAKE_BACK, worker, target): revoke a task that it has not begun, for the worker `target`, or all of them if that is
None, and call `taken_back`.
"""

START = "start"
"""(START, worker): start a worker, replacing the previous one if any; call `started` or `not_started`."""

RETIRE = "retire"
"""(RETIRE, worker): end this idle worker without a replacement."""

LOOK_AT = "look at"
"""(LOOK_AT, worker, kills): inspect this unresponsive worker, kill it if `kills`, and call `seen`."""

Decision = tuple[Any, ...]
