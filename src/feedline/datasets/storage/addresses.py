"""Addresses made safe to display: without user, password and everything after the question mark (options, signatures).

Every address that ends up in a message, a repr, a state or a file goes through here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from hashlib import blake2b
from urllib.parse import parse_qsl, quote, unquote, urlencode

HIDDEN = "***"
_HOST = re.compile(r"((\[[^\[\]]*\]|[^:\[\]]+)(:\d*)?)?")
_SHORTEST = 4
"""Minimum length of a value to hide in other texts."""
_SIGNATURES = [
    (re.compile(sign), re.compile(options))
    for sign, options in (
        (r"x-(amz|goog|oss|cos|obs|tos)-signature", r"x-(amz|goog|oss|cos|obs|tos)-.*|token"),
        (r"(aws|oss)accesskeyid|googleaccessid|key-pair-id", r".*access(key)?id|key-pair-id|signature|expires|policy"),
        (r"sig", r"sig|s[eiprstv]|srt|spr|sip|sdd|scid|sk[estv]|skoid|sktid|saoid|suoid"),
        (r"access_token|api_?key|password", r"access_token|api_?key|password"),
    )
]
"""Query options that identify the caller and the expiry: the option that reveals a signature, and all its options.
These cover AWS, Google and others, their older kind and CloudFront, Azure, and options that are credentials by name.
Without a signature, names such as `st` and `policy` may identify the file."""


def shown_url(url: str) -> str:
    """Return a URL without possible secrets; hide the whole text if it is not a URL.

    Example:
        >>> shown_url("redis://ada:secret@localhost:6379/0?password=secret")
        'redis://***@localhost:6379/0?***'
        >>> shown_url("s3://bucket/a@b.tar")
        's3://bucket/a@b.tar'
    """
    scheme, colon, rest = url.partition("://")
    if not colon:
        return HIDDEN
    place, query, options = rest.partition("?")
    authority, slash, path = place.partition("/")
    _, at, host = authority.rpartition("@")
    is_web = scheme.lower() in ("http", "https")
    # An @ elsewhere may end a password that was not quoted properly, and an invalid host may be part of one.
    if (("@" in path + options or is_web) and not _HOST.fullmatch(host)) or ("@" in options and not slash):
        return f"{scheme}://{HIDDEN}"
    if is_web:  # in other schemes these characters are part of a name
        path = re.sub(r"([#;]).*", rf"\1{HIDDEN}", path, flags=re.DOTALL)
    return f"{scheme}://{at and HIDDEN + at}{host}{slash}{path}{query and query + HIDDEN}"


def shown_address(address: str) -> str:
    """Return a URL, or the path of a local file, without possible secrets.

    In a path, this hides what looks like user, password and options of an address with a misspelt or missing protocol.

    Example:
        >>> shown_address("/data/a@b-?.tar"), shown_address("ada:secret@host/a.tar?token=1")
        ('/data/a@b-?.tar', '***@host/a.tar?***')
    """
    if "://" in address:
        return shown_url(address)
    address = re.sub(r"\?[^?/]*=.*", f"?{HIDDEN}", address, count=1, flags=re.DOTALL)
    parts = [(part.rpartition("@"), part) for part in address.split("/")]
    return "/".join(f"{HIDDEN}@{place}" if ":" in user else part for (user, _, place), part in parts)


def without_secrets(text: str, address: str) -> str:
    """Return a text, such as an exception message, without the secrets of an address.

    Example:
        >>> without_secrets("bucket ada:hunter2@b is unknown to hunter2", "s3://ada:hunter2@b/a.tar")
        'bucket ***@b is unknown to ***'
    """
    if shown_address(address) == address:
        return text
    rest = address.partition("://")[2]
    place, _, options = rest.partition("?")
    user = place.partition("/")[0].rpartition("@")[0]
    found = [rest, user, *user.partition(":")[::2], options, *(value for _, value in parse_qsl(options))]
    found += [unquote(secret) for secret in found] + [quote(secret, safe="") for secret in found]
    return hidden(text, found)


def hidden(text: str, secrets: Iterable[str]) -> str:
    """Return a text without these values, except for those that are so short that they occur as ordinary words."""
    for secret in sorted({secret for secret in secrets if len(secret) >= _SHORTEST}, key=len, reverse=True):
        text = text.replace(secret, HIDDEN)
    return text


def identity_of(address: str) -> str:
    """Return an identifier of an address, independent of the caller and the signature, to be written to files.

    Options that are not a signature are part of it, as a digest: they may distinguish files, and may be secret.

    Example:
        >>> identity_of("https://ada:pw@host/a.tar?X-Amz-Signature=1") == identity_of("https://bob@host/a.tar?sig=2")
        True
        >>> identity_of("https://host/get?file=1") == identity_of("https://host/get?file=2")
        False
    """
    place, _, options = address.partition("?")
    pairs = parse_qsl(options, True)
    names = [name.lower() for name, _ in pairs]
    signed = [every for sign, every in _SIGNATURES if any(map(sign.fullmatch, names))]
    kept = [pair for pair in pairs if not any(every.fullmatch(pair[0].lower()) for every in signed)]
    kept += [("", part) for part in place.partition("://")[2].partition("/")[2].partition("#")[0].split(";")[1:]]
    shown = shown_address(address).removesuffix(f"?{HIDDEN}").rpartition(f"{HIDDEN}@")
    digest = blake2b(urlencode(kept).encode(), digest_size=16).hexdigest() if kept else ""
    return f"{shown[0]}{shown[2]}{digest and '?' + digest}"
