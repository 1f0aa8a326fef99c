"""Runs of views: events are made on demand, and a button can be clicked once the run has offered it."""

import asyncio
import json
from collections.abc import Iterator
from dataclasses import replace

import pytest

from feedline.errors import BadOption
from feedline.tools.lab.controls import Values
from feedline.tools.lab.pictures import Event, buttons
from feedline.tools.lab.runs import Runs
from feedline.tools.lab.view import Actions
from tests.tools.lab.served import counting


def test_a_slow_reader_slows_its_run() -> None:
    view, made = counting(), list[int]()

    def counted(values: Values, actions: Actions) -> Iterator[Event]:
        for number, event in enumerate(view.run(values, actions)):
            made.append(number)
            yield event

    async def read() -> None:
        lines = Runs().begin(replace(view, run=counted), {"events": 20_000, "fails": False}).lines()
        for wanted in range(5):  # the first line is the code, which does not come from the run
            await anext(lines)
            assert len(made) == wanted
        await lines.aclose()  # type: ignore[attr-defined]  # it is a generator

    asyncio.run(read())


def test_buttons_can_be_clicked_once_the_run_shows_them() -> None:
    def offering(values: Values, actions: Actions) -> Iterator[Event]:
        yield buttons({"try-2": "Try finding 2"})
        yield {"kind": "say", "text": actions.get_nowait()}

    async def read() -> list[Event]:
        runs = Runs()
        lines = runs.begin(replace(counting(), run=offering), {"events": 0}).lines()
        number = json.loads(await anext(lines))["number"]
        with pytest.raises(BadOption, match="no button 'try-2'"):
            runs.act(number, "try-2")
        await anext(lines)
        runs.act(number, "try-2")
        with pytest.raises(BadOption, match="no button 'try-1'"):
            runs.act(number, "try-1")
        return [json.loads(line) async for line in lines]

    assert asyncio.run(read()) == [{"kind": "say", "text": "try-2"}, {"kind": "done"}]
