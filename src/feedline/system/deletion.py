"""Close an object when it is deleted.

At interpreter shutdown, modules lose their contents before the last objects are deleted, so `close` would fail then. It
is not called: the system closes everything.
"""

from __future__ import annotations

import sys
from abc import abstractmethod
from collections.abc import Callable


class ClosedWhenDeleted:
    """Base of classes with a resource that only `close` gives back, such as a file descriptor, which is a number."""

    @abstractmethod
    def close(self) -> None:
        """Give everything back. May be called twice."""

    def _needs_closing(self) -> bool:
        """True if there is something to give back; also called if the constructor failed."""
        return True

    # A default value, because this module may have lost its contents as well.
    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if not is_finalizing() and self._needs_closing():
            self.close()
