"""`penstock queues`, `jobs`, `dlq`, `schedules` and `state`."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw
import pytest

from penstock import App, Node
from penstock.testing.until import until

RESIZE = """
from pathlib import Path
from penstock import job

@job(queue="pictures")
def resize(picture):
    if not Path("fixed").exists():
        raise ValueError(f"cannot read {picture}")
    return picture
"""


@pytest.fixture(autouse=True)
def _workers(project: Path) -> None:
    (project / "workers" / "resize.py").write_text(RESIZE)


def enqueue(*inputs: Any, **options: Any) -> list[str]:
    async def add() -> list[str]:
        async with App(dir="workers") as app:
            return [await app.enqueue("pictures", input, **options) for input in inputs]

    return asyncio.run(add())


def work() -> None:
    """Work on the pictures until none is waiting."""

    async def run_worker() -> None:
        async with App(dir="workers") as app, app.workers.background(queues=["pictures"]):
            await until(lambda: _is_idle(app), 20)

    asyncio.run(run_worker())


async def _is_idle(app: App) -> bool:
    counts = await app.queues.counts("pictures")
    return not counts["waiting"] and not counts["active"]


def rows(answer: Any) -> list[dict[str, Any]]:
    return [json.loads(line) for line in answer.lines]


@pytest.mark.spec("000-15.3")
def test_queues_are_listed_with_their_counts(penstock: Callable) -> None:
    enqueue(1, 2)
    found = {row["queue"]: row for row in rows(penstock("queues", "--json"))}
    assert found["pictures"]["waiting"] == 2
    assert found["greet"]["waiting"] == 0
    assert found["pictures"]["ageMs"] >= 0
    assert found["greet"]["oldest"] is None
    assert penstock("queues", "list").lines[0] == penstock("queues").lines[0]


def test_a_queue_is_paused_and_resumed(penstock: Callable) -> None:
    enqueue(1)
    assert penstock("queues", "pause", "pictures").out == "Queue pictures is paused.\n"
    assert [row["paused"] for row in rows(penstock("queues", "--json")) if row["queue"] == "pictures"] == [True]
    assert penstock("queues", "resume", "pictures", "--json").json == {"queue": "pictures", "paused": False}
    assert "no queue named 'pictres'" in penstock("queues", "pause", "pictres").err


def test_a_queue_is_drained(penstock: Callable) -> None:
    enqueue(1, 2)
    enqueue(3, delay="1h")
    assert penstock("queues", "drain", "pictures").out == "Removed 2 jobs from queue pictures.\n"
    assert penstock("queues", "drain", "pictures", "--delayed", "--json").json["removed"] == 1


def test_jobs_are_listed_and_shown(penstock: Callable) -> None:
    ids = enqueue("a", "b")
    assert [row["id"] for row in rows(penstock("jobs", "list", "pictures", "--json"))] == ids
    assert len(penstock("jobs", "list", "pictures", "--limit", "1").lines) == 2  # a header and one
    shown = penstock("jobs", "show", ids[0], "--json").json
    assert (shown["state"], shown["input"]) == ("waiting", "a")
    assert f"id          {ids[0]}" in penstock("jobs", "show", ids[0]).out
    assert "[unknown_job]" in penstock("jobs", "show", "nope").err
    assert "[unknown_queue]" in penstock("jobs", "list", "nope").err


def test_a_parent_is_shown_with_its_children(penstock: Callable) -> None:
    async def add() -> None:
        async with App(dir="workers") as app:
            await app.jobs.enqueue_tree(
                Node("pictures", "all", key="album", children=[Node("pictures", "a"), Node("pictures", "b")])
            )

    asyncio.run(add())
    shown = penstock("jobs", "show", "album", "--json").json
    assert shown["state"] == "waiting-children"
    assert shown["children"] == {"unprocessed": 2, "processed": 0, "ignored": 0, "failed": 0}
    assert penstock("jobs", "show", "album-c1", "--json").json["parent"] == "album"
    (listed,) = rows(penstock("jobs", "list", "pictures", "--state", "waiting-children", "--json"))
    assert listed["id"] == "album"


def test_jobs_are_promoted_retried_and_removed(penstock: Callable) -> None:
    (id,) = enqueue("a", delay="1h")
    assert penstock("jobs", "promote", id).out == f"Job {id} is due now.\n"
    assert "only delayed jobs can be promoted [run_error]" in penstock("jobs", "promote", id).err
    assert "only failed and cancelled jobs" in penstock("jobs", "retry", id).err
    work()
    assert penstock("jobs", "show", id, "--json").json["state"] == "failed"
    assert penstock("jobs", "retry", id).code == 0
    assert penstock("jobs", "remove", id).out == f"Job {id} is removed.\n"
    assert penstock("jobs", "show", id).code == 2


def test_a_step_is_not_retried_as_a_job(penstock: Callable) -> None:
    penstock("run", "fails", "--key", "mine")
    assert "use `penstock runs retry mine`" in penstock("jobs", "retry", "mine.fails.1").err


def test_dead_letters_are_listed_shown_and_discarded(penstock: Callable) -> None:
    (id,) = enqueue("a")
    assert "No dead letters." in penstock("dlq").err
    work()
    assert rows(penstock("dlq", "--json")) == [{"queue": "pictures-dlq", "count": 1}]
    (letter,) = rows(penstock("dlq", "list", "pictures", "--json"))
    assert (letter["id"], letter["error"], letter["input"]) == (f"{id}.dlq", "cannot read a", "a")
    shown = penstock("dlq", "show", id)
    assert shown.lines[0] == f"id        {id}.dlq"
    assert 'raise ValueError(f"cannot read {picture}")' in shown.out
    assert penstock("dlq", "discard", id).out == f"Dead letter {id} is discarded.\n"
    assert penstock("jobs", "show", id).code == 0  # the dead letter is gone, its job is not
    assert "[unknown_job]" in penstock("dlq", "discard", id).err


def test_one_dead_letter_is_redriven_with_another_input(penstock: Callable, project: Path) -> None:
    (id,) = enqueue("a")
    work()
    (project / "fixed").touch()
    answer = penstock("dlq", "redrive", id, "--input", '"b"')
    assert answer.lines == [f"{id}.dlq -> {id}.redrive-1", "Redrove 1 dead letter."]
    work()
    assert penstock("jobs", "show", f"{id}.redrive-1", "--json").json["result"] == "b"


def test_dead_letters_are_redriven_by_their_error(penstock: Callable) -> None:
    enqueue("red", "green", "dark red")
    work()
    sent = penstock("dlq", "redrive", "--all", "pictures", "--error", "red", "--limit", "1", "--json").json
    assert len(sent["sent"]) == 1
    assert "Redrove 1 dead letter." in penstock("dlq", "redrive", "--all", "pictures", "--error", "red").out
    assert "Redrove 1 dead letter." in penstock("dlq", "redrive", "--all", "pictures").out
    assert "Redrove 0 dead letters." in penstock("dlq", "redrive", "--all", "pictures").out


@pytest.mark.parametrize(
    "args", [[], ["a", "--all", "pictures"], ["a", "--error", "x"], ["a", "--input", "{"], ["a", "--input", "null"]]
)
def test_an_ambiguous_redrive_is_refused(penstock: Callable, args: list[str]) -> None:
    enqueue("a")
    assert penstock("dlq", "redrive", *args).code == 2


def test_a_refused_redrive_is_reported(penstock: Callable) -> None:
    penstock("run", "fails", "--key", "mine")
    asyncio.run(_delete_run("mine"))
    answer = penstock("dlq", "redrive", "mine.fails.1")
    assert answer.code == 1
    assert "refused mine.fails.1.dlq: no run with id 'mine'" in answer.err


async def _delete_run(run: str) -> None:
    from penstock.ports.store import Retention

    async with App(dir="workers") as app:
        await app.store.sweep(Retention(keep_runs=0))
        assert await app.store.run(run) is None


def test_schedules(penstock: Callable) -> None:
    answer = penstock("schedules", "add", "daily", "--flow", "greet", "--cron", "0 9 * * *", "--input", '"Ada"')
    assert answer.out.startswith("Schedule daily fires 0 9 * * * UTC, next at 2")
    penstock("schedules", "add", "often", "--queue", "pictures", "--every", "5m")
    penstock("schedules", "add", "once", "--flow", "greet", "--at", "2090-01-31T09:00:00+01:00")
    found = {row["id"]: row for row in rows(penstock("schedules", "--json"))}
    assert [found[id]["when"] for id in ("daily", "often", "once")] == [
        "0 9 * * * UTC",
        "every 5 min",
        "once at 2090-01-31T08:00:00.000Z",
    ]
    assert found["daily"]["input"] == "Ada"
    assert penstock("schedules", "pause", "often").out == "Schedule often is paused.\n"
    (paused,) = (row for row in rows(penstock("schedules", "--json")) if row["id"] == "often")
    assert (paused["paused"], paused["overlap"], paused["fired"]) == (True, "allow", 0)
    assert penstock("schedules", "resume", "often").out.startswith("Schedule often is resumed, next at 2")
    (started,) = rows(penstock("schedules", "run-now", "daily", "--json"))
    assert penstock("runs", "show", started["started"]).code == 0
    assert penstock("schedules", "remove", "often").out == "Schedule often is removed.\n"
    assert "[unknown_schedule]" in penstock("schedules", "remove", "often").err


def test_schedules_with_policies(penstock: Callable) -> None:
    times = ["--every", "1m", "--start", "2090-01-01", "--end", "2091-01-01T00:00:00+01:00"]
    policies = ["--limit", "3", "--overlap", "queue", "--catch-up", "none"]
    (added,) = rows(penstock("schedules", "add", "mine", "--flow", "greet", *times, *policies, "--json"))
    assert (added["start"], added["end"]) == ("2090-01-01T00:00:00.000Z", "2090-12-31T23:00:00.000Z")
    assert (added["limit"], added["overlap"], added["catchUp"], added["origin"]) == (3, "queue", "none", None)
    assert added["next"] == added["start"]
    for command in ("pause", "resume", "run-now"):
        assert "[unknown_schedule]" in penstock("schedules", command, "other").err


@pytest.mark.parametrize(
    "args",
    [
        ["--flow", "greet"],
        ["--every", "1m"],
        ["--flow", "greet", "--queue", "q", "--every", "1m"],
        ["--flow", "nope", "--every", "1m"],
        ["--flow", "greet", "--every", "soon"],
        ["--flow", "greet", "--cron", "often"],
        ["--flow", "greet", "--cron", "0 9 * * *", "--tz", "Mars/Base"],
        ["--flow", "greet", "--at", "tomorrow"],
        ["--flow", "greet", "--every", "1m", "--limit", "0"],
        ["--flow", "greet", "--every", "1m", "--overlap", "never"],
        ["--flow", "greet", "--every", "1m", "--start", "2031-01-01", "--end", "2030-01-01"],
    ],
)
def test_invalid_schedules(penstock: Callable, args: list[str]) -> None:
    answer = penstock("schedules", "add", "mine", *args)
    assert (answer.code, answer.err.startswith("error: ")) == (2, True)


def test_state(penstock: Callable) -> None:
    penstock("start", "greet", "--key", "mine")
    assert penstock("state", "set", "rates/eur", "1.08").out == "rates/eur is set.\n"
    assert penstock("state", "get", "rates/eur").out == "1.08\n"
    penstock("state", "set", "rates/usd", '{"a": "b"}', "--json")
    assert penstock("state", "list", "rates/").lines == [
        "key        value",
        "rates/eur  1.08",
        'rates/usd  {"a":"b"}',
    ]
    assert penstock("state", "delete", "rates/eur").out == "rates/eur is deleted.\n"
    assert penstock("state", "get", "rates/eur").code == 2
    assert penstock("state", "delete", "rates/eur").code == 2


@pytest.mark.spec("000-15.1")
def test_the_state_of_a_run(penstock: Callable) -> None:
    penstock("start", "greet", "--key", "mine")
    penstock("state", "set", "seen", '"once"', "--run", "mine", "--ttl", "1h")
    assert penstock("state", "get", "seen", "--run", "mine").out == "once\n"
    assert penstock("state", "get", "seen").code == 2
    assert "[unknown_run]" in penstock("state", "set", "a", "1", "--run", "nope").err
    assert "a state key must have 1 to 500 characters" in penstock("state", "set", "x" * 501, "1").err
    assert "invalid duration 'soon'" in penstock("state", "set", "a", "1", "--ttl", "soon").err


def test_a_job_that_cannot_be_decoded_is_shown(penstock: Callable, project: Path) -> None:
    (bad,) = enqueue("a")
    (file,) = project.rglob("*.db")
    connection = apsw.Connection(str(file))
    connection.execute("UPDATE jobs SET payload = ? WHERE id = ?", (b"{oops", bad))
    connection.close()
    waiting = penstock("jobs", "show", bad, "--json").json
    assert waiting["input"] is None
    assert waiting["unreadable"].startswith("the input must be valid JSON, got 5 bytes")
    work()
    assert penstock("jobs", "show", bad, "--json").json["error"].startswith("the input must be valid JSON")
    assert "the input must be valid JSON" in penstock("jobs", "show", bad).out
    assert [row["id"] for row in rows(penstock("jobs", "list", "pictures", "--state", "failed", "--json"))] == [bad]
    (listed,) = rows(penstock("dlq", "list", "pictures", "--json"))
    assert listed["id"] == f"{bad}.dlq"
    assert "the input must be valid JSON" in penstock("dlq", "show", bad).out
    assert "1 in pictures-dlq" in penstock("doctor").out
    assert "redrive it with another input" in penstock("dlq", "redrive", bad).out + penstock("dlq", "redrive", bad).err


def test_limits_are_changed_shown_and_reset(penstock: Callable) -> None:
    enqueue(1)
    changed = penstock("queues", "limits", "pictures", "--concurrency", "2", "--rate-limit", "100/1m", "--json").json
    assert changed["effective"] == {"concurrency": 2, "maxActive": None, "rateLimit": "100/1m", "perKey": False}
    shown = penstock("queues", "limits", "pictures").out
    assert "in use" in shown
    assert "changed" in shown
    assert "100/1m" in shown
    assert penstock("queues", "limits", "pictures", "--reset", "--json").json["override"] is None
    assert "[bad_argument]" in penstock("queues", "limits", "pictures", "--reset", "--max-active", "1").err


def test_the_keys_of_a_queue(penstock: Callable) -> None:
    enqueue(1, 2, order_key="shop-1")
    assert "No open job of queue greet has a key." in str(penstock("queues", "keys", "greet"))
    assert rows(penstock("queues", "keys", "pictures", "--json")) == [
        {"key": "shop-1", "jobs": 2, "waiting": 1, "held": 1, "delayed": 0, "active": 0}
    ]
