from __future__ import annotations

from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedline.datasets.storage.addresses import HIDDEN, identity_of, shown_address, shown_url


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://host/a.tar", "https://host/a.tar"),
        ("https://host:80/a@b.tar?sig=x@y", "https://host:80/a@b.tar?***"),
        ("https://[::1]:80/a@b", "https://[::1]:80/a@b"),
        ("https://ada@host/a", "https://***@host/a"),
        ("https://ada:pw@host", "https://***@host"),
        ("https://ada:p@w@host", "https://***@host"),
        ("https://ada:pw/a.tar", "https://***"),
        ("https://host/a.tar;session=pw", "https://host/a.tar;***"),
        ("https://host/a.tar#pw", "https://host/a.tar#***"),
        ("s3://arn:aws:s3:x/a", "s3://arn:aws:s3:x/a"),
        ("s3://bucket/a#1.tar", "s3://bucket/a#1.tar"),
        ("unix:///tmp/a@b.sock?password=pw", "unix:///tmp/a@b.sock?***"),
        ("redis://:p/w@host", "redis://***"),
        ("redis://:p?w@host", "redis://***"),
        ("redis://ada:p/w?w@host", "redis://***"),
        ("password", "***"),
    ],
)
def test_secrets_in_urls_are_hidden(url: str, shown: str) -> None:
    assert shown_url(url) == shown


@given(st.text(min_size=1))
def test_passwords_in_urls_are_hidden(password: str) -> None:
    written = quote(password, safe="")
    expected = "redis://***@host:1/0?***"
    assert shown_url(f"redis://ada:{written}@host:1/0?password={written}") == expected


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("/data/a@b-?.tar", "/data/a@b-?.tar"),
        ("C:\\data\\a.tar", "C:\\data\\a.tar"),
        ("ada:pw@host/a.tar", "***@host/a.tar"),
        ("http:/ada:p@w@host/a.tar?sig=pw", "http:/***@host/a.tar?***"),
        ("s3://ada:pw@bucket/a.tar", "s3://***@bucket/a.tar"),
    ],
)
def test_secrets_in_addresses_are_hidden(address: str, shown: str) -> None:
    assert shown_address(address) == shown


@pytest.mark.parametrize(
    "options",
    [
        "X-Amz-Date=1&X-Amz-Signature=2&X-Amz-Security-Token=3&token=4",
        "X-Goog-Expires=1&X-Goog-Signature=2",
        "AWSAccessKeyId=1&Signature=2&Expires=3",
        "GoogleAccessId=1&Expires=2&Signature=3",
        "Policy=1&Signature=2&Key-Pair-Id=3",
        "sv=1&st=2&se=3&sr=b&sp=r&sig=4",
        "access_token=1",
    ],
)
def test_identity_ignores_users_and_signatures(options: str) -> None:
    plain = "https://host/a.tar"
    assert identity_of(plain) == identity_of(f"https://ada:pw@host/a.tar?{options}") == plain
    assert identity_of(f"{plain}?id=1&{options}") == identity_of(f"{plain}?id=1")
    assert shown_url(f"{plain}?{options}") == f"{plain}?{HIDDEN}"


@pytest.mark.parametrize(
    "option", ["id", "st", "sp", "se", "sig2", "policy", "expires", "signature", "tokenizer", "token", "x-amz-meta-id"]
)
def test_other_query_options_are_part_of_the_identity(option: str) -> None:
    plain = "https://host/a.tar"
    assert identity_of(f"{plain}?{option}=1") != identity_of(f"{plain}?{option}=2")
    assert option not in identity_of(f"{plain}?{option}=1").removeprefix(plain)
    assert shown_url(f"{plain}?{option}=1") == f"{plain}?{HIDDEN}"


def test_hidden_parts_of_a_path_are_part_of_the_identity() -> None:
    assert identity_of("https://host/get;file=1") != identity_of("https://host/get;file=2")
