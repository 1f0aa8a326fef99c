from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedline.datasets.formats.sql.address import Address
from feedline.errors import BadOption

pytestmark = pytest.mark.sample(4)


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("sqlite:///a.db", "a.db"),
        ("sqlite:////tmp/a.db", "/tmp/a.db"),
        ("duckdb:///folder/a%20b.db", "folder/a b.db"),
        ("SQLITE:///a.db", "a.db"),
    ],
)
def test_paths(text: str, path: str) -> None:
    assert Address(text).path == path


@pytest.mark.parametrize(
    "text", ["sqlite://a.db", "sqlite:///", "sqlite:///:memory:", "sqlite:///a?mode=rw", "duckdb://"]
)
def test_rejects_addresses_without_a_valid_path(text: str) -> None:
    with pytest.raises(BadOption):
        assert Address(text).path


@pytest.mark.parametrize(
    "text", ["people.db", "", "mysql://u:s3cret@h/d", b"sqlite://s3cret", None, 3, "host=h password=s3cret"]
)
def test_rejects_malformed_addresses(text: Any) -> None:
    with pytest.raises(BadOption) as caught:
        Address(text)
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("postgresql://ada@h:1/d", "postgresql://***@h:1/d"),
        ("postgresql://ada:pw@h:1/d?sslmode=require", "postgresql://***@h:1/d?***"),
        ("postgres://h/d?user=ada&password=pw", "postgres://h/d?***"),
        ("postgresql:///d?host=/tmp/x", "postgresql:///d?***"),
        ("postgresql://h/d?oauth_client_secret=pw", "postgresql://h/d?***"),
        ("sqlite:////data/a@b.db", "sqlite:////data/a@b.db"),
        ("sqlite:///a.db?key=pw", "sqlite:///a.db?***"),
        ("duckdb://ada:pw@/a.db", "duckdb://***@/a.db"),
    ],
)
def test_repr_hides_users_and_options(text: str, shown: str) -> None:
    assert repr(Address(text)) == shown


def test_hide_removes_secrets_from_other_text() -> None:
    address = Address("postgresql://h/d?password=pw&oauth_client_secret=hunter2&keepalives=1&sslmode=require")
    assert address.hide("pw, hunter2, 1, require") == "***, ***, 1, require"
    assert address.hide('no password for user "ada"') == 'no password for user "***"'


@given(st.text(st.characters(codec="ascii", categories=("L", "N", "P", "S")), min_size=4))
def test_passwords_are_never_shown(password: str) -> None:
    from urllib.parse import quote

    if password in "postgresql://***@host/people":
        return
    address = Address(f"postgresql://ada:{quote(password, safe='')}@host/people")
    assert password not in repr(address)
    assert quote(password, safe="") not in repr(address)
    assert password not in address.hide(f"it was {password}!").removeprefix("it was ")
