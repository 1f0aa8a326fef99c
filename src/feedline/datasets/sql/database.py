"""What a kind of database has to know."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

from feedline.datasets.sql.address import Address
from feedline.datasets.sql.statement import Parameters
from feedline.errors import SourceError

# Any, throughout: connections, values and rows are the driver's.

Rows = list[tuple[Any, ...]]

_OWN = "feedline_key"
"""The name of a placeholder of our own, beside such with names."""


class Database(ABC):
    """A kind of database: how to connect, ask and read.

    Instances have no state but the address, so that they can be pickled; workers open connections of their own. A
    connection belongs to one thread, and can only read.

    Args:
        address: where it is.
        external: True if a query or a view may read what is not in the database.
    """

    def __init__(self, address: Address, *, external: bool = False) -> None:
        self.address = address
        self.external = external

    @abstractmethod
    def check(self) -> None:
        """Make sure that the driver is installed and the address makes sense; connects to nothing."""

    @abstractmethod
    def connect(self) -> Any:
        """Open a connection that cannot write."""

    @abstractmethod
    def close(self, connection: Any) -> None:
        """Close a connection; it may be broken."""

    @abstractmethod
    def describe(self, connection: Any, statement: str, parameters: Parameters) -> list[tuple[str, str]]:
        """Return the names of a result's columns, and their types as far as they are known."""

    @abstractmethod
    def rows(self, connection: Any, statement: str, parameters: Parameters) -> Rows:
        """Return all rows of a result."""

    @abstractmethod
    def stream(self, connection: Any, statement: str, parameters: Parameters, size: int) -> Iterator[Rows]:
        """Yield the rows of a result, `size` at a time, all as they were when it began."""

    @abstractmethod
    def with_keys(self, keys: list[Any], column: str, parameters: Parameters) -> list[tuple[str, Parameters]]:
        """Return conditions for rows with these keys, and parameters with the keys in them.

        One, unless the database takes fewer values at a time. `column` is the key, quoted.
        """

    @abstractmethod
    def after_key(self, key: Any, column: str, parameters: Parameters) -> tuple[str, Parameters]:
        """Return a condition for rows whose key comes after this one, and parameters with the key in them."""

    def query(self, text: str, parameters: Parameters) -> str:
        """Return the user's query as it is to be given to the driver."""
        return text

    @property
    @abstractmethod
    def errors(self) -> tuple[type[Exception], ...]:
        """What the driver raises."""

    @abstractmethod
    def is_lost(self, connection: Any, exc: Exception) -> bool:
        """True if the connection broke, so that another one may do."""

    def is_corrupt(self, exc: Exception) -> bool:
        """True if the database is damaged."""
        return False

    def advice(self, exc: Exception) -> str:
        """Return what to do about a query that was refused or failed."""
        return "Check query= and parameters=."


class Embedded(Database):
    """A database in a file, whose driver takes keys as a list of placeholders."""

    most_keys = 0
    """Keys in one statement."""
    mark = ""
    """What a placeholder with a name begins with; one without a name is a question mark."""

    def check(self) -> None:
        assert self.address.path

    def _file(self) -> str:
        """Return the path of the file.

        Raises:
            SourceError: there is none.
        """
        path = os.path.abspath(self.address.path)
        if not os.path.exists(path):
            raise SourceError(f"There is no file {path!r}, which {self.address!r} names.")
        return path

    def close(self, connection: Any) -> None:
        connection.close()

    def with_keys(self, keys: list[Any], column: str, parameters: Parameters) -> list[tuple[str, Parameters]]:
        found = []
        most = self._most_keys(parameters)
        for first in range(0, len(keys), most):
            marks, values = self._extended(parameters, keys[first : first + most])
            found.append((f"{column} IN ({', '.join(marks)})", values))
        return found

    def _most_keys(self, parameters: Parameters) -> int:
        return self.most_keys

    def after_key(self, key: Any, column: str, parameters: Parameters) -> tuple[str, Parameters]:
        (mark,), values = self._extended(parameters, [key])
        return f"{column} > {mark}", values

    def _extended(self, parameters: Parameters, values: Sequence[Any]) -> tuple[list[str], Parameters]:
        """Add values to those of the user's query; return their placeholders, and all parameters."""
        if isinstance(parameters, dict):
            named = {f"{_OWN}_{number}": value for number, value in enumerate(values)}
            return [f"{self.mark}{name}" for name in named], {**parameters, **named}
        return ["?"] * len(values), [*(parameters or ()), *values]

    def is_lost(self, connection: Any, exc: Exception) -> bool:
        return False
