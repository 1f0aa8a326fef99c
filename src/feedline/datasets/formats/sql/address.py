"""Connection strings, and which parts of them may be shown."""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

from feedline.datasets.storage.addresses import HIDDEN, shown_url, without_secrets
from feedline.errors import BadOption

_HOST = r"(\[[0-9a-fA-F:.]*\]|[\w.%-]*)(:\d*)?"
_HOSTS = re.compile(f"{_HOST}(,{_HOST})*")

SCHEMES = ("sqlite", "duckdb", "postgresql", "postgres")


@dataclass(frozen=True, repr=False)
class Address:
    """Where a database is.

    Example:
        >>> Address("postgresql://ada:secret@localhost/people")
        postgresql://***@localhost/people
        >>> Address("sqlite:///people.db").path
        'people.db'
    """

    text: str

    def __post_init__(self) -> None:
        given: object = self.text  # any value from the user; no part of it is shown, as it could be secret
        if not isinstance(given, str) or self.scheme not in SCHEMES:
            raise BadOption(
                "The connection string is not one of a supported database: sqlite:///people.db, duckdb:///people.db or "
                "postgresql://user@host/database. To read another database, write a dataset of your own."
            )

    @property
    def scheme(self) -> str:
        """The kind of database."""
        return self.text.partition("://")[0].lower()

    @property
    def path(self) -> str:
        """The file of an embedded database. It follows three slashes, so an absolute path has four."""
        rest = self.text.partition("://")[2]
        path = unquote(rest[1:])
        if not rest.startswith("/") or "?" in rest or "#" in rest or not path or path.startswith(":memory:"):
            raise BadOption(
                f"{self!r} is not of the form {self.scheme}:///path: three slashes and the path of a file, with %3F "
                "for a question mark and %23 for a hash. Workers cannot read a database in memory."
            )
        return path

    def hide(self, text: str) -> str:
        """Remove the secrets from a text, and the user names that PostgreSQL quotes."""
        return re.sub(r'\b(user|role) "[^"]*"', rf'\1 "{HIDDEN}"', without_secrets(text, self.text))

    @property
    def is_clear(self) -> bool:
        """True if the address can be parsed, so it is known which part is the password."""
        try:
            split = urlsplit(self.text)
        except ValueError:
            return False
        return "@" not in split.path and _HOSTS.fullmatch(split.netloc.rpartition("@")[2]) is not None

    def __repr__(self) -> str:
        rest = self.text.partition("://")[2]
        is_file = self.scheme in ("sqlite", "duckdb") and rest.startswith("/") and "?" not in rest
        if not is_file and self.scheme.startswith("postgres") and not self.is_clear:
            return f"{self.scheme}://{HIDDEN}"
        return self.text if is_file else shown_url(self.text)
