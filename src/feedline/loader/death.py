"""The end of an epoch by a death after which there is no going on."""

from __future__ import annotations

from typing import NoReturn

from feedline.loader.account import Account
from feedline.loader.crew import Crew
from feedline.types import Result


def raise_death(result: Result, crew: Crew, account: Account | None, epoch: int) -> NoReturn:
    """End the workers, and raise what one of them died of.

    Args:
        result: the death. What was raised is taken out of it: whoever calls this has the result in a variable, and the
            traceback will refer to that frame, which makes a cycle for the garbage collector.
        crew: the workers.
        account: where samples are entered that were found to kill.
        epoch: the number of the epoch.
    """
    crew.close()
    if account is not None:
        account.enter(result, 0, epoch)
    death, result.payload = result.payload, None
    try:
        raise death
    finally:
        del death
