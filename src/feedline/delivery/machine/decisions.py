"""What the machine decides: tuples that begin with one of these words."""

from __future__ import annotations

from typing import Any

GIVE = "give"
"""(GIVE, worker, task): submit the task; tell `not_given` if it cannot be sent."""

TAKE_BACK = "take back"
"""(TAKE_BACK, worker, count): revoke so many tasks that it has not begun, None for all, and tell `taken_back`."""

FORGET = "forget"
"""(FORGET, worker): nobody wants what it has been given so far; what it has read and not begun need not be done."""

START = "start"
"""(START, worker): start a worker, in the place of another if there was one; tell `started` or `not_started`."""

RETIRE = "retire"
"""(RETIRE, worker): end it; it has nothing to do, and nobody takes its place."""

LOOK_AT = "look at"
"""(LOOK_AT, worker, kills): it does not answer; see what it is doing, end it if `kills`, and tell `seen`."""

Decision = tuple[Any, ...]
