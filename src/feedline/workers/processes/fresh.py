"""What a worker runs that inherits nothing (spawn, forkserver): it reads the specification, and serves.

A new interpreter imports all of this before the first batch, in every worker. So this side of the folder imports
nothing that only the training process needs. Test: tests/workers/processes/test_fresh.py
"""

from __future__ import annotations

import gc

from feedline.workers import session
from feedline.workers.processes.payload import Payload
from feedline.workers.processes.worker import Link, say_unready, serve


def run(link: Link, payload: Payload) -> None:
    """Read the specification and work until the training process closes the socket or ends."""
    gc.freeze()  # as in a forked worker: collections while the dataset is read would visit all that was imported
    try:
        spec = payload.open(link.number)
    except Exception as exc:  # the user's own, from __setstate__ or an import
        not_found = session.not_found(exc) if isinstance(exc, AttributeError) else None
        return say_unready(link, not_found or exc)
    gc.freeze()
    serve(link, spec)
