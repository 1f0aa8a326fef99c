"""URLs as they may be shown."""

from __future__ import annotations

import re

_HIDDEN = "***"
_HOST = re.compile(r"((\[[^\[\]]*\]|[^:\[\]]+)(:\d*)?)?")


def shown_url(url: str) -> str:
    """Return a URL without what may be secret in it: who asks, and with which options or signature.

    Example:
        >>> shown_url("redis://ada:secret@localhost:6379/0?password=secret")
        'redis://***@localhost:6379/0?***'
        >>> shown_url("s3://bucket/a@b.tar")
        's3://bucket/a@b.tar'
    """
    scheme, colon, rest = url.partition("://")
    if not colon:
        return _HIDDEN
    place, query, options = rest.partition("?")
    authority, slash, path = place.partition("/")
    _, at, host = authority.rpartition("@")
    # An @ elsewhere may end a password that was not quoted as it should be.
    if ("@" in path + options and not _HOST.fullmatch(host)) or ("@" in options and not slash):
        return f"{scheme}://{_HIDDEN}"
    return f"{scheme}://{at and _HIDDEN + at}{host}{slash}{path}{query and query + _HIDDEN}"
