"""Addresses, names and numbers made safe to display: no secrets, and nothing that a terminal interprets.

Everything that ends up in a message, a repr, a state or a file goes through here. In an address, this hides the user
and password and everything after the question mark (options, signatures).
"""

from __future__ import annotations

import re
from hashlib import blake2b
from urllib.parse import parse_qsl, quote, unquote, urlencode

HIDDEN = "***"
_HOST = re.compile(r"((\[[^\[\]]*\]|[^:\[\]]+)(:\d*)?)?")
_SHORTEST = 4
"""Characters of a value that is hidden in other texts: shorter ones are words of these."""
_SIGNATURES = [
    (re.compile(sign), re.compile(options))
    for sign, options in (
        (r"x-(amz|goog|oss|cos|obs|tos)-signature", r"x-(amz|goog|oss|cos|obs|tos)-.*|token"),
        (r"(aws|oss)accesskeyid|googleaccessid|key-pair-id", r".*access(key)?id|key-pair-id|signature|expires|policy"),
        (r"sig", r"sig|s[eiprstv]|srt|spr|sip|sdd|scid|sk[estv]|skoid|sktid|saoid|suoid"),
        (r"access_token|api_?key|password", r"access_token|api_?key|password"),
    )
]
"""Options by which stores know who asks and until when: the one that shows that there is a signature, and all of it.

These are AWS, Google and others, their older kind and CloudFront, Azure, and what is a credential by its name. Without
a signature, names such as `st` and `policy` may as well say which file is meant."""


def shown_url(url: str) -> str:
    """Return a URL without what may be secret in it; nothing of a text that is none.

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
    # An @ elsewhere may end a password that was not quoted as it should be, and what is no host may be one.
    if (("@" in path + options or is_web) and not _HOST.fullmatch(host)) or ("@" in options and not slash):
        return f"{scheme}://{HIDDEN}"
    if is_web:  # elsewhere these signs are part of a name
        path = re.sub(r"([#;]).*", rf"\1{HIDDEN}", path, flags=re.DOTALL)
    return f"{scheme}://{at and HIDDEN + at}{host}{slash}{path}{query and query + HIDDEN}"


def shown_address(address: str) -> str:
    """Return a URL, or the path of a local file, without what may be secret in it.

    Of a path, this is what looks like user, password and options: of an address whose protocol is misspelt or missing.

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
    """Return a text, such as that of an exception, without what is hidden of an address.

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
    for secret in sorted({secret for secret in found if len(secret) >= _SHORTEST}, key=len, reverse=True):
        text = text.replace(secret, HIDDEN)
    return text


def identity_of(address: str) -> str:
    """Return what tells an address from others, whoever asks and with which signature, to be written to files.

    Options that are no signature are part of it, as a digest: they may tell files apart, and may be secret.

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
    told = [pair for pair in pairs if not any(every.fullmatch(pair[0].lower()) for every in signed)]
    told += [("", part) for part in place.partition("://")[2].partition("/")[2].partition("#")[0].split(";")[1:]]
    shown = shown_address(address).removesuffix(f"?{HIDDEN}").rpartition(f"{HIDDEN}@")
    digest = blake2b(urlencode(told).encode(), digest_size=16).hexdigest() if told else ""
    return f"{shown[0]}{shown[2]}{digest and '?' + digest}"


def printable(text: str) -> str:
    r"""Return a text in which a terminal finds nothing to obey: control characters and the like are written as escapes.

    Line feeds stay. Names out of files may hold anything, also signs that change the direction of what follows.

    Example:
        >>> printable("a\x1b[2Jb\u202e.jpg")
        'a\\x1b[2Jb\\u202e.jpg'
    """
    if text.isprintable():
        return text
    return "".join(sign if sign.isprintable() or sign == "\n" else ascii(sign)[1:-1] for sign in text)


def csv_cell(value: object) -> object:
    """Return a value for a cell of a CSV file: a text that spreadsheets would take for a formula gets a quote first.

    Example:
        >>> csv_cell("=1+2"), csv_cell("a=1"), csv_cell(-3)
        ("'=1+2", 'a=1', -3)
    """
    if not isinstance(value, str):
        return value
    # Quotes are looked through, so that whoever reads the file knows which ones were put there.
    return f"'{value}" if value.replace("'", " ").lstrip().startswith(("=", "+", "-", "@")) else value


def counted(count: int, one: str, many: str = "") -> str:
    """Return a number of things in words.

    Example:
        >>> counted(1, "worker"), counted(3, "worker"), counted(2, "batch", "batches")
        ('1 worker', '3 workers', '2 batches')
    """
    return f"{count} {one if count == 1 else many or one + 's'}"


def percent(share: float, digits: int = 0) -> str:
    """Return a share in percent."""
    return f"{100 * share:.{digits}f} %"
