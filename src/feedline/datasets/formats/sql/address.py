"""Connection strings, and which parts of them may be shown."""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from feedline.datasets.storage.addresses import HIDDEN, shown_url
from feedline.errors import BadOption

_HOST = r"(\[[0-9a-fA-F:.]*\]|[\w.%-]*)(:\d*)?"
_HOSTS = re.compile(f"{_HOST}(,{_HOST})*")
_SECRET = ("password", "passfile", "sslpassword")
_PLAIN = ("user", "host", "hostaddr", "port", "dbname", "sslmode", "connect_timeout", "application_name")
"""Options whose values may occur in other texts. Values of other options may be secret."""

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
        given: object = self.text  # any value from the user
        if not isinstance(given, str) or "://" not in given:  # show no part of it: it could be secret
            raise BadOption(
                "A connection string looks like sqlite:///people.db, duckdb:///people.db or "
                "postgresql://user@host/database, but this one has no '://'."
            )
        if self.scheme not in SCHEMES:
            raise BadOption(
                f"The connection string starts with {self.scheme!r}, which is not one of {', '.join(SCHEMES)}. To read "
                "another database, write a dataset of your own."
            )

    @property
    def scheme(self) -> str:
        """The kind of database."""
        return self.text.partition("://")[0].lower()

    @property
    def path(self) -> str:
        """The file of an embedded database. It follows three slashes, so an absolute path has four."""
        rest = self.text.partition("://")[2]
        if not rest.startswith("/") or "?" in rest or "#" in rest:
            raise BadOption(
                f"{self!r} is not of the form {self.scheme}:///path: three slashes and a path, which may be relative. "
                "Write %3F for a question mark in it and %23 for a hash."
            )
        path = unquote(rest[1:])
        if not path or path.startswith(":memory:"):
            raise BadOption(
                f"{self!r} names no file. A database in memory belongs to one connection, so workers cannot read it."
            )
        return path

    @property
    def secrets(self) -> list[str]:
        """Texts that must not be shown, both URL-encoded and decoded."""
        user = self.text.partition("://")[2].split("/")[0].rpartition("@")[0]
        found = [user.partition(":")[2]]
        for name, value in parse_qsl(self.text.partition("?")[2]):
            # A short value of an option that is not a password may be a word in other texts.
            if name.lower() in _SECRET or (name.lower() not in _PLAIN and len(value) >= 4):
                found.append(value)
        found += [unquote(secret) for secret in found] + [quote(secret, safe="") for secret in found]
        return sorted({secret for secret in found if secret}, key=len, reverse=True)

    def hide(self, text: str) -> str:
        """Remove the secrets from a text, and the user names that PostgreSQL quotes."""
        for secret in self.secrets:
            text = text.replace(secret, HIDDEN)
        return re.sub(r'\b(user|role) "[^"]*"', rf'\1 "{HIDDEN}"', text)

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
