"""Runs of views over HTTP: who may start them, what they send, and that they leave nothing behind, however they end."""

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from feedline.tools.lab import server
from feedline.tools.lab.server import HEADER, Run
from tests.tools.lab.served import TOKEN, client, has_ended, served
from tests.tools.lab.views import COUNTING, FORKING, WAITING


@pytest.fixture(scope="module", autouse=True)
def without_torch() -> Iterator[None]:
    """Do not preload torch: these runs do not use it, and Python's fork server takes seconds to import it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(server, "_PRELOADED", ())
        yield


@pytest.fixture(scope="module")
def address(without_torch: None) -> Iterator[str]:
    with served(COUNTING, WAITING) as at:
        yield at


def events_of(address: str, **values: object) -> list[dict[str, Any]]:
    with client(address) as asking:
        text = asking.post("/runs", json={"view": "counting", "values": values}).text
    return [json.loads(line) for line in text.splitlines()]


# -- who may start them -----------------------------------------------------------------------------------------------


def test_only_the_address_with_the_token_shows_the_page(address: str) -> None:
    pages = [httpx.get(address, params={"token": TOKEN}, trust_env=False) for _ in range(2)]
    assert all("feedline lab" in page.text for page in pages)
    policies = [page.headers["content-security-policy"] for page in pages]
    assert policies[0] != policies[1]
    assert "default-src 'none'" in policies[0]
    assert "unsafe" not in policies[0]
    # A form of another site could send the token in the address if it knew it, but no header.
    assert httpx.post(f"{address}/runs", params={"token": TOKEN}, json={}, trust_env=False).status_code == 403


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"origin": "{address}"}, 200),
        ({"host": "evil.example:80"}, 403),
        ({"origin": "https://evil.example"}, 403),
        ({"origin": "null"}, 403),
        ({"sec-fetch-site": "cross-site"}, 403),
        ({HEADER: TOKEN[:-1]}, 403),
    ],
)
def test_only_the_labs_own_page_may_run_views(address: str, headers: dict[str, str], status: int) -> None:
    given = {name: value.format(address=address) for name, value in headers.items()}
    with client(address, **given) as asking:
        assert asking.post("/runs", json={"view": "counting"}).status_code == status


@pytest.mark.parametrize("path", ["/", "/runs", "/nothing", "/?token=guessed"])
def test_nothing_is_shown_without_a_token(address: str, path: str) -> None:
    answer = httpx.get(address + path, trust_env=False)
    assert answer.status_code == 403
    assert "<html" not in answer.text


# -- what they send ---------------------------------------------------------------------------------------------------


def test_a_run_sends_its_code_its_events_and_its_end(address: str) -> None:
    first, code, *middle, said, end = events_of(address, events=200)
    assert first["kind"] == "run"
    assert code == {"kind": "code", "text": "count(200)"}
    assert [event["values"]["number"] for event in middle] == list(range(200))
    assert (said["kind"], end["kind"]) == ("say", "done")


def test_a_failing_view_sends_the_error_and_its_traceback(address: str) -> None:
    failed = events_of(address, ends="raises")[-2]
    assert failed["kind"] == "error"
    assert "ValueError: this view fails" in failed["text"]
    assert "Traceback" in failed["more"]


@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        ("/runs", b"{", "not JSON"),
        ("/runs", b"[" * 90_000, "not JSON"),
        ("/runs", b'{"view": "none"}', "no view 'none'"),
        ("/runs", b'{"view": "counting", "values": {"events": 1000000000}}', "0 to 100000"),
        *((f"/runs/{number}/clicks", b'{"action": "go"}', "has ended") for number in ("9" * 5000, "none", "7000")),
    ],
)
def test_a_bad_request_is_answered_with_an_explanation(
    address: str, path: str, body: bytes, message: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with client(address) as asking:
        answer = asking.post(path, content=body)
    assert answer.status_code == 422
    assert message in answer.json()["error"]
    assert "Traceback" not in capfd.readouterr().err


def test_a_click_reaches_its_run_while_that_offers_the_button(address: str) -> None:
    with client(address) as asking, asking.stream("POST", "/runs", json={"view": "waiting"}) as run:
        lines = map(json.loads, run.iter_lines())
        clicks = f"/runs/{next(lines)['number']}/clicks"
        with client(address) as other:
            assert any(event["kind"] == "buttons" for event in lines)
            assert "no button 'stop'" in other.post(clicks, json={"action": "stop"}).json()["error"]
            assert other.post(clicks, json={"action": "go"}).status_code == 200
            assert {"kind": "say", "text": "clicked: go"} in list(lines)
            assert "has ended" in other.post(clicks, json={"action": "go"}).json()["error"]


def test_the_number_of_concurrent_runs_is_limited_and_a_run_ends_when_its_reader_leaves(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "MOST", 2)
    with ExitStack() as stack:
        reading, processes = [], []
        for _ in range(2):
            asking = stack.enter_context(client(address))
            reading.append(stack.enter_context(asking.stream("POST", "/runs", json={"view": "waiting"})).iter_lines())
            next(reading[-1])
            processes.append(int(json.loads(next(reading[-1]))["text"]))
        with client(address) as asking:
            answer = asking.post("/runs", json={"view": "waiting"})
        assert answer.status_code == 422
        assert "2 runs at a time" in answer.json()["error"]
    assert all(map(has_ended, processes))


# -- what they leave behind -------------------------------------------------------------------------------------------


def _check_nothing_is_left(report: str) -> None:
    process, worker, file = report.split(maxsplit=2)
    assert has_ended(int(process))
    assert has_ended(int(worker))
    assert not Path(file).parent.exists()


@pytest.mark.parametrize("dies", [True, False])
def test_a_run_that_dies_or_is_closed_leaves_nothing_behind(dies: bool) -> None:
    events = Run(FORKING, {"dies": dies}).events()
    report = next(event["text"] for event in events if event and event["kind"] == "say")
    if dies:
        assert "ended unexpectedly" in [event for event in events if event][-1]["text"]
    else:
        events.close()
    _check_nothing_is_left(report)
