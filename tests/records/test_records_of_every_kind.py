"""Damaged records of dags, entities, tokens, limits, webhooks and waits: every method of App answers, and the rest goes on.

The methods come from App, and the shared records from the store, so new ones are covered.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from damage import JSON_JUNK, JUNK, Damage
from penstock import App

sys.path.insert(0, str(Path(__file__).parents[1] / "bounds"))

from hostile import complain
from hostile_world import HANDLERS, renew, settle, usual_arguments
from test_hostile_arguments import WAITS, call, methods

TEST_TIMEOUT_S = 30
IS_FULL = os.environ.get("PENSTOCK_FAULTS") == "full"
KINDS = list(JUNK) if IS_FULL else ["wrong types"]


async def prepare(url: str) -> tuple[list[str], dict[str, Any]]:
    """Make two of everything. Return the keys of the shared records, and the names of the first ones."""
    async with App(url, handlers=HANDLERS, blob_url="memory:") as app:
        chosen = await settle(app, 0)
        await settle(app, 1)
        await app.queues.set_limits("mail", max_active=3)
        await renew(app)
        return [row.key for row in await app.store.states("")], chosen


async def complaints_of_readers(app: App, chosen: dict[str, Any]) -> list[str]:
    found = []
    for where, method in methods(app).items():
        if (
            where in WAITS or where == "app.listen"
        ):  # a worker that is stopped at once may keep what it has just claimed
            continue
        try:
            await call(method, True, usual_arguments(where, method, chosen))
        except Exception as problem:
            if (complaint := complain(problem)) is not None:
                found.append(f"{where}: {complaint}")
    return found


async def check_that_work_goes_on(app: App, *, with_definitions: bool) -> None:
    await app.queues.resume("mail")
    if with_definitions:
        await app.dags.activate("d")
    async with app.workers.background():
        await app.jobs.result(await app.enqueue("mail", "good"), timeout=TEST_TIMEOUT_S)
        await app.runs.wait(await app.start("shop", {"a": 1}), timeout=TEST_TIMEOUT_S)
        if with_definitions:
            await (await app.entities.emit("tally-1", "add", 3)).result(timeout=TEST_TIMEOUT_S)
            view = await app.runs.wait(await app.dags.start("d", {"a": 1}), timeout=TEST_TIMEOUT_S)
            assert view.status == "completed"


@pytest.mark.parametrize("junk", KINDS)
@pytest.mark.parametrize("part", ["shared records", "runs", "events"])
async def test_damaged_records(shared_url: str, part: str, junk: str) -> None:
    url = shared_url
    if part == "events" and url.startswith("postgresql") and junk not in JSON_JUNK:
        pytest.skip("Postgres checks that it is JSON")
    keys, chosen = await prepare(url)
    damage = Damage(url)
    if part == "shared records":
        for key in keys:
            damage.state(key, JUNK[junk])
    elif part == "runs":
        for run in ("dag-0", "tally-0", "patient-0"):
            damage.run(run, JUNK[junk])
    else:
        for stream in ("nq:dag:dag-0", "nq:entity:tally-0", "nq:flow:patient-0"):
            damage.event(stream, 1, JUNK[junk])
    async with App(url, handlers=HANDLERS, blob_url="memory:") as app:
        found = await complaints_of_readers(app, chosen)
        await check_that_work_goes_on(app, with_definitions=part != "shared records")
    assert found == [], "\n".join(["", *found])
