from __future__ import annotations

from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedline.shown import shown_url


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://host/a.tar", "https://host/a.tar"),
        ("https://host:80/a@b.tar?sig=x@y", "https://host:80/a@b.tar?***"),
        ("https://[::1]:80/a@b", "https://[::1]:80/a@b"),
        ("https://ada@host/a", "https://***@host/a"),
        ("https://ada:pw@host", "https://***@host"),
        ("https://ada:p@w@host", "https://***@host"),
        ("s3://arn:aws:s3:x/a", "s3://arn:aws:s3:x/a"),
        ("s3://bucket/a#1.tar", "s3://bucket/a#1.tar"),
        ("unix:///tmp/a@b.sock?password=pw", "unix:///tmp/a@b.sock?***"),
        ("redis://:p/w@host", "redis://***"),
        ("redis://:p?w@host", "redis://***"),
        ("redis://ada:p/w?w@host", "redis://***"),
        ("password", "***"),
    ],
)
def test_what_is_shown(url: str, shown: str) -> None:
    assert shown_url(url) == shown


@given(st.text(min_size=1))
def test_no_password_is_shown(password: str) -> None:
    written = quote(password, safe="")
    expected = "redis://***@host:1/0?***"
    assert shown_url(f"redis://ada:{written}@host:1/0?password={written}") == expected
