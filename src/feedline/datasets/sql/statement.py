"""SQL around the user's query. Values never become part of its text; names are quoted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from feedline.errors import BadOption

# Any: parameters of any kind.
Parameters = Sequence[Any] | Mapping[str, Any] | None
"""What stands for the placeholders of a query."""


def quoted(name: str) -> str:
    """Return a name as SQL has it.

    Example:
        >>> quoted('a "b" c') == '"a ""b"" c"'
        True
    """
    return '"' + name.replace('"', '""') + '"'


def checked_query(query: Any) -> str:
    """Return a query that can stand in another one.

    Raises:
        BadOption: it is no text, or empty.
    """
    text = query.strip().rstrip(";").rstrip() if isinstance(query, str) else ""
    if not text:
        raise BadOption(f"query={query!r} is not a SELECT statement.")
    return text


def checked_parameters(parameters: Any) -> Parameters:
    """Return parameters as drivers take them.

    Raises:
        BadOption: they are neither a sequence nor a mapping.
    """
    if parameters is None:
        return None
    if isinstance(parameters, Mapping):
        return dict(parameters)
    if isinstance(parameters, (str, bytes)) or not isinstance(parameters, Sequence):
        raise BadOption(
            "parameters= is neither a list of values, for placeholders without names, nor a dict, for those with names."
        )
    return list(parameters)


def select(columns: Sequence[str], query: str, *, where: str = "", order: str = "", limit: int | None = None) -> str:
    """Return a statement that selects columns of a query's result."""
    listed = ", ".join(f"feedline_q.{quoted(column)}" for column in columns) if columns else "*"
    # The query ends with a line of its own: it may end with a comment.
    text = f"SELECT {listed} FROM (\n{query}\n) AS feedline_q"
    if where:
        text += f" WHERE {where}"
    if order:
        text += f" ORDER BY feedline_q.{quoted(order)}"
    return text if limit is None else f"{text} LIMIT {limit:d}"
