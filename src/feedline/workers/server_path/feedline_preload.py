"""Imported by a fork server, which finds this folder on its path and nothing of the program yet.

The folder has no other module, and none may be added: it comes before the standard library on the server's path.
See `feedline.workers.forkserver`.
"""

import json
import os
import sys

if "FEEDLINE_FORKSERVER" in os.environ:
    before, sys.path[:] = sys.path[:], json.loads(os.environ["FEEDLINE_FORKSERVER"])["path"]
    try:
        import feedline.workers.forkserver  # noqa: F401  (it does the rest)
    finally:
        sys.path[:] = before
