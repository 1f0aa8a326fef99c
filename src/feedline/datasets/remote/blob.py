"""The contract of something that has bytes, any range of which can be read."""

from __future__ import annotations

from abc import ABC, abstractmethod


class Blob(ABC):
    """A file or object that is open for reading. Its size is fixed: if the content changes, reading fails."""

    name: str
    """The path or address, without what is secret in it."""
    size: int
    tag: str
    """Another text when the content is another: a time of change, an entity tag. Empty if nobody knows."""
    is_local = False
    """True if a read costs next to nothing beyond its bytes."""

    @property
    def address(self) -> str:
        """The path or address, as the user gave it: never shown."""
        return self.name

    @abstractmethod
    def read(self, start: int, stop: int) -> bytes:
        """Return exactly the bytes from `start` to `stop`. Blocks; may be called by several threads at once.

        Raises:
            SourceError: they cannot be had, also not after trying again.
            SourceChanged: the content is not what it was when the blob was opened.
        """

    @abstractmethod
    def close(self) -> None:
        """Close it. May be called twice; by nobody while another thread reads. Dropping it does the same."""

    def check(self) -> None:  # noqa: B027  (most can tell while they read)
        """Raise SourceChanged if the content has changed since the blob was opened, as far as `read` did not tell."""

    def __repr__(self) -> str:
        return f"<{self.name}, {self.size} bytes>"
