"""Which requests the lab accepts; each check works on its own."""

from collections.abc import Iterator

import httpx
import pytest

from tests.tools.lab.served import TOKEN, client, counting, served


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with served(counting()) as at:
        yield at


RUN = {"view": "counting", "values": {}}


def test_the_labs_own_page_may_run_views(address: str) -> None:
    with client(address, origin=address) as asking:
        assert asking.post("/runs", json=RUN).status_code == 200


def test_opening_the_address_with_the_token_sets_a_cookie_and_redirects(address: str) -> None:
    with httpx.Client(base_url=address, trust_env=False) as browser:
        answer = browser.get("/", params={"token": TOKEN})
        assert answer.status_code == 303
        assert answer.headers["location"] == "/"
        assert "HttpOnly" in answer.headers["set-cookie"]
        assert "SameSite=strict" in answer.headers["set-cookie"]
        page = browser.get("/")
        assert page.status_code == 200
        assert "feedline lab" in page.text


@pytest.mark.parametrize(
    ("headers", "message"),
    [
        ({"host": "evil.example:80"}, "answers at http://127.0.0.1"),
        ({"host": "127.0.0.1:1"}, "answers at"),
        ({"origin": "https://evil.example"}, "Another site"),
        ({"origin": "null"}, "Another site"),
        ({"sec-fetch-site": "cross-site"}, "Another site"),
        ({"sec-fetch-site": "same-site"}, "Another site"),
        ({"x-feedline-token": "guessed"}, "token is missing or wrong"),
        ({"x-feedline-token": ""}, "token is missing or wrong"),
        ({"x-feedline-token": TOKEN[:-1]}, "token is missing or wrong"),
    ],
)
def test_forged_requests_are_rejected(address: str, headers: dict[str, str], message: str) -> None:
    with client(address, **headers) as asking:
        answer = asking.post("/runs", json=RUN)
    assert answer.status_code == 403
    assert message in answer.text


def test_a_cookie_alone_is_not_enough_to_run_a_view(address: str) -> None:
    """Another site's form would send the cookie of an older browser; it cannot send the header."""
    with httpx.Client(base_url=address, trust_env=False) as browser:
        browser.get("/", params={"token": TOKEN})
        assert browser.get("/").status_code == 200
        assert browser.post("/runs", json=RUN).status_code == 403


@pytest.mark.parametrize("path", ["/", "/runs", "/nothing", "/?token=guessed"])
def test_nothing_is_shown_without_a_token(address: str, path: str) -> None:
    answer = httpx.get(address + path, trust_env=False)
    assert answer.status_code == 403
    assert "<html" not in answer.text


def test_the_content_security_policy_forbids_other_scripts(address: str) -> None:
    with httpx.Client(
        base_url=address, trust_env=False, cookies={f"feedline_lab_{address.rpartition(':')[2]}": TOKEN}
    ) as browser:
        answers = [browser.get("/") for _ in range(2)]
    policies = [answer.headers["content-security-policy"] for answer in answers]
    assert policies[0] != policies[1]
    assert "default-src 'none'" in policies[0]
    assert "unsafe" not in policies[0]
