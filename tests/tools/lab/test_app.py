"""Runs of views over HTTP: events come in order, a slow reader slows its run, and a run ends when its reader leaves."""

import json
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import pytest

from feedline.tools.lab.controls import Values
from feedline.tools.lab.guard import HEADER
from feedline.tools.lab.pictures import Event
from feedline.tools.lab.runs import MOST
from feedline.tools.lab.view import Actions
from tests.tools.lab.served import TOKEN, Waiting, client, counting, served, serving


def _events(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_a_run_sends_its_code_its_events_and_its_end() -> None:
    with served(counting()) as address, client(address) as asking:
        events = _events(asking.post("/runs", json={"view": "counting", "values": {"events": 200}}).text)
    assert events[0]["code"] == "count(200)"
    assert [event["values"]["number"] for event in events[1:-2]] == list(range(200))
    assert [event["kind"] for event in events[-2:]] == ["say", "done"]


def test_a_failing_view_sends_the_error_and_its_traceback() -> None:
    with served(counting()) as address, client(address) as asking:
        events = _events(asking.post("/runs", json={"view": "counting", "values": {"fails": True}}).text)
    assert events[-1]["kind"] == "error"
    assert events[-1]["text"] == "ValueError: this view fails"
    assert "Traceback" in events[-1]["more"]


def test_a_value_that_json_cannot_represent_is_an_error_of_the_run() -> None:
    def undefined(values: Values, actions: Actions) -> Iterator[Event]:
        yield {"kind": "figures", "values": {"rate": float("nan")}}

    with served(replace(counting(), run=undefined)) as address, client(address) as asking:
        events = _events(asking.post("/runs", json={"view": "counting"}).text)
    assert [event["kind"] for event in events] == ["run", "error"]
    assert "ValueError" in events[-1]["text"]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"{", "not JSON"),
        (b"[]", "not a JSON object"),
        (b"[" * 90_000, "not JSON"),
        (b'{"view": "none"}', "no view 'none'"),
        (b'{"view": "counting", "values": {"events": 1000000000}}', "0 to 100000"),
        (b'{"view": "counting", "values": 3}', "must be an object"),
        (b'{"view": "counting", "values": {"x": 1}}', "no setting 'x'"),
        (b'"' + b"x" * 200_000 + b'"', "at most"),
    ],
)
def test_a_bad_request_is_answered_with_an_explanation(body: bytes, message: str) -> None:
    with served(counting()) as address, client(address) as asking:
        answer = asking.post("/runs", content=body)
    assert answer.status_code == 422
    assert message in answer.json()["error"]


def test_clicks_reach_the_run() -> None:
    waiting = Waiting()
    with (
        served(waiting.view()) as address,
        client(address) as asking,
        asking.stream("POST", "/runs", json={"view": "waiting"}) as run,
    ):
        lines = run.iter_lines()
        number = json.loads(next(lines))["number"]
        assert any(json.loads(line)["kind"] == "buttons" for line in lines)
        with client(address) as other:
            assert other.post(f"/runs/{number}/actions", json={"action": "nothing"}).status_code == 422
            assert other.post(f"/runs/{number}/actions", json={"action": "go"}).status_code == 200
        rest = [json.loads(line) for line in lines]
        assert {"kind": "say", "text": "clicked: go"} in rest
        with client(address) as other:
            answer = other.post(f"/runs/{number}/actions", json={"action": "go"})
        assert "has ended" in answer.json()["error"]


def test_a_run_ends_when_its_reader_leaves() -> None:
    waiting = Waiting()
    with served(waiting.view()) as address:
        with client(address) as asking, asking.stream("POST", "/runs", json={"view": "waiting"}) as run:
            lines = run.iter_lines()
            next(lines)
        assert waiting.closed.wait(60)


def test_a_connection_closed_in_the_middle_of_a_request_is_not_an_error(capfd: pytest.CaptureFixture[str]) -> None:
    with serving(counting()) as (address, connections):
        host, port = "127.0.0.1", int(address.rpartition(":")[2])
        with socket.create_connection((host, port)) as asking:
            head = f"POST /runs HTTP/1.1\r\nHost: {host}:{port}\r\n{HEADER}: {TOKEN}\r\nContent-Length: 9\r\n\r\n"
            asking.sendall(head.encode())
            connections.wait_until(bool)
        connections.wait_until(lambda count: not count)
    assert "Traceback" not in capfd.readouterr().err


def test_the_number_of_concurrent_runs_is_limited() -> None:
    waiting = Waiting()
    with served(waiting.view()) as address, ExitStack() as stack:
        reading = []
        for _ in range(MOST):
            asking = stack.enter_context(client(address))
            run = stack.enter_context(asking.stream("POST", "/runs", json={"view": "waiting"}))
            reading.append(run.iter_lines())
            next(reading[-1])
        with client(address) as asking:
            answer = asking.post("/runs", json={"view": "waiting"})
        assert answer.status_code == 422
        assert "at a time" in answer.json()["error"]


@pytest.mark.parametrize("number", ["9" * 5000, "none", "-1", "7"])
def test_an_action_for_an_unknown_run_is_answered_with_an_explanation(
    number: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with served(counting()) as address, client(address) as asking:
        answer = asking.post(f"/runs/{number}/actions", json={"action": "go"})
    assert answer.status_code == 422
    assert "has ended" in answer.json()["error"]
    assert "Traceback" not in capfd.readouterr().err
