"""Times beyond the calendar are refused as options, but shown if they are stored."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from penstock import App
from penstock.ports.store import ScheduleRow
from penstock.ports.unit import NewJob, Unit
from penstock.schedules.spec import ScheduleSpec, Target

FAR = "99999999d"
FAR_MS = 1_800_000_000_000_000
SHOWN = "+059009-09-24T08:00:00.000Z"


@pytest.mark.parametrize(
    ("args", "option"),
    [
        (["start", "greet", "--delay", FAR], "--delay"),
        (["enqueue", "mail", "--delay", FAR], "--delay"),
        (["schedules", "add", "s", "--queue", "mail", "--every", FAR], "--every"),
    ],
)
def test_durations_that_are_too_long(penstock: Callable, args: list[str], option: str) -> None:
    answer = penstock(*args)
    assert (answer.code, answer.out) == (2, "")
    assert f"{option}: duration '{FAR}' is too long; the maximum is 36525d (100 years)" in answer.err
    assert penstock("schedules", "--json").out == ""
    assert penstock("runs", "--json").out == ""


def test_other_options(penstock: Callable) -> None:
    assert "such as 2h, at most 36525d (100 years), or a time" in penstock("runs", "--since", FAR).err
    answer = penstock("schedules", "add", "s", "--flow", "greet", "--at", "9999-12-31T23:59:59-05:00")
    assert answer.code == 2
    assert "is out of range; a time must be from" in answer.err
    assert "every='1ms' is too frequent" in penstock("schedules", "add", "s", "--flow", "greet", "--every", "1ms").err


async def _store(path: Path) -> None:
    async with App(f"sqlite:///{path}/.penstock/penstock.db", handlers=[]) as app:
        await app.store.commit([Unit("u", jobs=[NewJob("far", "greet", "greet", b"1", due=FAR_MS)])])
        spec = ScheduleSpec(every_ms=FAR_MS, start_ms=FAR_MS, end_ms=3 * FAR_MS)
        row = ScheduleRow("s", msgspec.json.encode(spec), msgspec.json.encode(Target(flow="greet")), FAR_MS)
        assert await app.store.put_schedule(row, None)


def test_stored_times_are_shown(penstock: Callable, project: Path) -> None:
    asyncio.run(_store(project))
    assert penstock("jobs", "show", "far", "--json").json["due"] == SHOWN
    for args in (["jobs", "list", "greet", "--state", "delayed"], ["jobs", "show", "far"], ["schedules"], ["doctor"]):
        answer = penstock(*args)
        assert (answer.code, answer.err) == (0, ""), args
    assert SHOWN in penstock("schedules").out
