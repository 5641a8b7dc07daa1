"""Rows of pg-boss that no handler can use fail alone, once; the jobs beside them complete."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

import postgres_server
from penstock import App, Context, flow, job
from penstock.app.pgboss_import import PgBossImport
from penstock.core.errors import ConfigError
from penstock.messaging.pgboss import AddJob, EmitEvent, PgBoss, PgBossSchema, StartFlow
from penstock.ports.bridge import Message
from penstock.testing.until import until

pytestmark = [pytest.mark.xdist_group("interop"), pytest.mark.asyncio(loop_scope="module")]
SCHEMA = "badboss"
QUICK: dict[str, Any] = {"poll": "20ms", "schema": SCHEMA}
OPEN = ("created", "retry", "active")
DEEP = "[" * 200 + "]" * 200

# Data that no payload may have, as SQL, and a part of the error.
BAD_DATA = {
    "deep": (f"'{DEEP}'", "nested deeper"),
    "large": ("to_jsonb(repeat('x', 70000))", "70,002 bytes; the limit is 65,536"),
    "huge": ("to_jsonb(repeat('x', 3000000))", "3,000,002 bytes"),
    "large integer": ("'9007199254740993'", "2^53"),
    "exponent": ("'1e400'", "2^53"),
    "many digits": ("'1e5000'", "not valid JSON"),
    "beyond all": ("'[1e100000]'", "100,003 bytes"),
}
# Data that is unusual and allowed.
ODD_DATA = ("NULL", "'null'", "'true'", "'0'", "'\"\"'", "'[]'", "'{}'", "'{\"\": null}'", "'\"\\ud83e\\uddea\"'")
# Columns that pg-boss would not write. The job is claimed, and its attempts are counted somehow.
ODD_COLUMNS = (
    "retry_count = 2147483647, started_on = now(), state = 'retry'",
    "retry_count = -5",
    "retry_count = -2147483648, retry_limit = 2147483647",
    "retry_limit = -1",
    "started_on = 'infinity', state = 'retry'",
    "started_on = '-infinity', state = 'retry'",
    "created_on = '-infinity', keep_until = '-infinity', start_after = '-infinity'",
    "created_on = 'infinity', keep_until = 'infinity'",
    "priority = 2147483647",
    "priority = -2147483648",
    "retry_delay = 2147483647, retry_backoff = true",
    "retry_delay = -2147483648",
    "expire_seconds = 2147483647",
    "heartbeat_seconds = 0",
    "policy = 'no such policy', singleton_key = repeat('k', 3000)",
    "group_id = '', group_tier = repeat('g', 3000)",
    "output = '[1e400]'",
    "completed_on = 'infinity'",
)


@flow("strict", key=lambda input: input["id"])
async def strict(input: Any, ctx: Context) -> Any:
    return input


@flow("any")
async def anything(input: Any, ctx: Context) -> Any:
    return {"got": input}


@job(queue="keyed", rate_limit="100/1s", rate_key=lambda input: input["customer"])
async def keyed(input: Any, ctx: Context) -> Any:
    return input


def boss_url() -> str:
    return postgres_server.server().url().partition("?")[0]


def do(statement: str, *values: Any) -> list[Any]:
    return postgres_server.server().do(statement, *values)


@pytest.fixture
def queue() -> str:
    """Return a new name: all tests share a schema."""
    return f"q-{uuid4().hex[:12]}"


@pytest.fixture(params=["one database", "two databases"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return the URL of our store: in pg-boss' database, or elsewhere."""
    return postgres_server.url() if request.param == "one database" else f"sqlite:///{tmp_path}/penstock.db"


def insert(queue: str, data: str, columns: str = "") -> str:
    """Insert a job with data as SQL, change its columns, and return its id."""
    ((id,),) = do(f"INSERT INTO badboss.job (name, data) VALUES ($1, {data}::jsonb) RETURNING id", queue)
    if columns:
        do(f"UPDATE badboss.job SET {columns} WHERE name = $1 AND id = $2", queue, id)
    return str(id)


def with_id(id: str) -> str:
    """Return data that every key function here accepts, as SQL."""
    return f"jsonb_build_object('id', '{id}', 'customer', 1)"


async def settled(queue: str) -> dict[str, Any]:
    """Wait until no job of the queue is open; return their rows by id."""

    def found() -> dict[str, Any] | None:
        rows = do("SELECT id, state::text, retry_count, output::text FROM badboss.job WHERE name = $1", queue)
        is_open = any(row["state"] in OPEN for row in rows)
        return None if is_open else {str(row["id"]): row for row in rows}

    return await until(found, 60)  # type: ignore[no-any-return]


def created(queue: str) -> None:
    """Create a queue and its dead letter queue."""
    for name, options in ((f"{queue}-dead", {}), (queue, {"deadLetter": f"{queue}-dead"})):
        do("SELECT badboss.create_queue($1, $2::text::jsonb)", name, json.dumps({"policy": "standard", **options}))


def dead(queue: str) -> list[Any]:
    return do("SELECT source_id FROM badboss.job WHERE name = $1", f"{queue}-dead")


@pytest.mark.parametrize("target", [StartFlow("any"), EmitEvent("thing.seen"), AddJob("any-queue"), "function"])
async def test_unreadable_data_fails_alone(boss_tables: str, queue: str, url: str, target: Any) -> None:
    created(queue)
    seen: list[Any] = []

    async def handle(message: Message) -> None:
        seen.append(message.data)

    bad: dict[str, str] = {}
    good: list[str] = []
    for data, part in BAD_DATA.values():
        bad[insert(queue, data, f"dead_letter = '{queue}-dead', retry_limit = 5")] = part
        good.append(insert(queue, "'{\"n\": 1}'"))
    good += [insert(queue, data) for data in ODD_DATA]
    bridge = PgBoss(boss_url(), consume={queue: handle if target == "function" else target}, **QUICK)
    async with App(url, handlers=[anything], bridges=[bridge]) as app, app.workers.background():
        rows = await settled(queue)
    assert {id: rows[id]["state"] for id in good} == dict.fromkeys(good, "completed")
    for id, part in bad.items():
        assert rows[id]["state"] == "failed"
        assert rows[id]["retry_count"] == 0  # no retry can help
        assert part in rows[id]["output"]
    assert sorted(str(row["source_id"]) for row in dead(queue)) == sorted(bad)


async def test_odd_columns_do_not_block_a_queue(boss_tables: str, queue: str, url: str) -> None:
    created(queue)
    odd = [insert(queue, with_id(f"odd-{n}"), columns) for n, columns in enumerate(ODD_COLUMNS)]
    failing = [insert(queue, "'7'", columns) for columns in ODD_COLUMNS if "retry" not in columns]
    slow = insert(queue, "'7'", "retry_delay = 2147483647, retry_backoff = true, retry_limit = 2, retry_count = 1")
    good = insert(queue, with_id(f"good-{uuid4()}"))
    bridge = PgBoss(boss_url(), consume={queue: StartFlow("strict")}, **QUICK)
    async with App(url, handlers=[strict], bridges=[bridge]) as app, app.workers.background():

        def ended() -> dict[str, Any] | None:
            rows = do("SELECT id, state::text, retry_count FROM badboss.job WHERE name = $1", queue)
            found = {str(row["id"]): row["state"] for row in rows}
            is_open = any(state in OPEN for id, state in found.items() if id != slow) or found[slow] != "retry"
            return None if is_open else found

        states = await until(ended, 60)
    # The longest delay of all is a date far away, not an error.
    assert states.pop(slow) == "retry"
    assert {id: states[id] for id in failing} == dict.fromkeys(failing, "failed")
    assert {id: states[id] for id in (*odd, good)} == dict.fromkeys((*odd, good), "completed")


@pytest.mark.parametrize("target", [StartFlow("strict"), AddJob("keyed")])
async def test_a_key_function_that_fails_dead_letters_its_job(
    boss_tables: str, queue: str, url: str, target: Any
) -> None:
    created(queue)
    bad = [insert(queue, data) for data in ("NULL", "'[]'", "'{}'", "'7'")]
    good = insert(queue, with_id(f"good-{uuid4()}"))
    async with (
        App(url, handlers=[strict, keyed], bridges=[PgBoss(boss_url(), consume={queue: target}, **QUICK)]) as app,
        app.workers.background(),
    ):
        rows = await settled(queue)
    assert {id: rows[id]["state"] for id in bad} == dict.fromkeys(bad, "failed")
    assert "key function" in rows[bad[0]]["output"]
    assert rows[good]["state"] == "completed"


class Mute(Exception):
    """An error without a message."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


RESULTS: dict[str, Callable[[], Any]] = {
    "a result with U+0000": lambda: "a\0b",
    "a result that is no JSON": lambda: object(),
    "a result that is too large": lambda: "x" * 70_000,
}
ERRORS: dict[str, Exception] = {
    "U+0000": ValueError("a\0b"),
    "a lone surrogate": ValueError("\ud83e"),
    "no text": Mute(),
    "much text": ValueError("x" * 10_000_000),
}


async def test_results_and_errors_that_cannot_be_stored_end_their_job(boss_tables: str, queue: str) -> None:
    created(queue)
    ids = {what: insert(queue, f"to_jsonb('{what}'::text)") for what in (*RESULTS, *ERRORS, "good")}
    calls: list[str] = []

    async def handle(message: Message) -> Any:
        calls.append(message.data)
        if message.data in ERRORS:
            raise ERRORS[message.data]
        return RESULTS[message.data]() if message.data in RESULTS else "fine"

    async with (
        App(":memory:", bridges=[PgBoss(boss_url(), consume={queue: handle}, **QUICK)]) as app,
        app.workers.background(),
    ):
        rows = await settled(queue)
    states = {what: rows[id]["state"] for what, id in ids.items()}
    assert states == dict.fromkeys(states, "failed") | {"good": "completed"}
    assert all(calls.count(what) == 1 for what in RESULTS)  # a result is not computed again
    assert "U+0000" in rows[ids["a result with U+0000"]]["output"]
    assert "a\ufffdb" in rows[ids["U+0000"]]["output"]


async def test_overdue_jobs_with_odd_dates_do_not_hide_others(boss_tables: str, queue: str) -> None:
    created(queue)
    active = "state = 'active', retry_limit = 0, "
    far = insert(queue, "'1'", active + "started_on = '294276-12-31', expire_seconds = 2147483647")
    overdue = [
        insert(queue, "'1'", active + "started_on = '-infinity'"),
        insert(queue, "'1'", active + "started_on = now(), heartbeat_on = '-infinity', heartbeat_seconds = 1"),
        insert(queue, "'1'", active + "started_on = now() - interval '1 day', expire_seconds = -2147483648"),
        insert(queue, "'1'", active + "started_on = now() - interval '1 day'"),
    ]

    async def handle(message: Message) -> None:
        pass

    def failed() -> bool:
        rows = do("SELECT id FROM badboss.job WHERE name = $1 AND state = 'failed'", queue)
        return {str(row["id"]) for row in rows} == set(overdue)

    async with (
        App(":memory:", bridges=[PgBoss(boss_url(), consume={queue: handle}, **QUICK)]) as app,
        app.workers.background(),
    ):
        await until(failed, 60)
    assert do("SELECT state::text FROM badboss.job WHERE name = $1 AND id = $2::text::uuid", queue, far) == [
        ("active",)
    ]


async def test_a_dead_letter_that_cannot_be_written_is_reported(
    boss_tables: str, queue: str, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    created(queue)
    bad = insert(queue, f"'{DEEP}'", f"dead_letter = '{queue}-dead'")
    good = insert(queue, "'1'")
    # The dead letter queue lost its partition, or has a constraint of its own.
    do(f"ALTER TABLE badboss.job_common ADD CONSTRAINT \"no-{queue}\" CHECK (name <> '{queue}-dead')")
    try:
        bridge = PgBoss(boss_url(), consume={queue: StartFlow("any")}, **QUICK)
        async with App(url, handlers=[anything], bridges=[bridge]) as app, app.workers.background():
            rows = await settled(queue)
    finally:
        do(f'ALTER TABLE badboss.job_common DROP CONSTRAINT "no-{queue}"')
    assert (rows[bad]["state"], rows[good]["state"]) == ("failed", "completed")
    assert [one.message for one in caplog.records if "dead letter queue" in one.message and bad in one.message]


async def test_jobs_that_only_pgboss_may_run_stay(boss_tables: str, queue: str) -> None:
    """A failed job blocks its key in pg-boss: an attempt to claim the next one would fail for ever."""
    created(queue)
    strictly = "policy = 'key_strict_fifo', singleton_key = 'k'"
    insert(queue, "'1'", strictly + ", state = 'failed'")
    theirs = insert(queue, "'2'", strictly + ", priority = 9")
    ours = insert(queue, "'3'")
    seen: list[Any] = []

    async def handle(message: Message) -> None:
        seen.append(message.data)

    def done() -> bool:
        return bool(do("SELECT 1 FROM badboss.job WHERE name = $1 AND state = 'completed'", queue))

    async with (
        App(":memory:", bridges=[PgBoss(boss_url(), consume={queue: handle}, **QUICK)]) as app,
        app.workers.background(),
    ):
        await until(done, 30)
    states = {
        str(row["id"]): row["state"] for row in do("SELECT id, state::text FROM badboss.job WHERE name = $1", queue)
    }
    assert (seen, states[theirs], states[ours]) == ([3], "created", "completed")


# Events that become jobs


async def test_an_event_that_pgboss_cannot_store_is_skipped(
    boss_tables: str, queue: str, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    created(queue)
    bridge = PgBoss(boss_url(), produce={"thing.sent": queue}, **QUICK)
    async with App(url, bridges=[bridge]) as app, app.workers.background():
        await app.emit("thing.sent", {"n": 1})
        bad = await app.emit("thing.sent", {"text": "a\0b"})
        await app.emit("thing.sent", {"n": 2})
        await until(lambda: len(do("SELECT 1 FROM badboss.job WHERE name = $1", queue)) == 2, 30)
    rows = do("SELECT data::text FROM badboss.job WHERE name = $1 ORDER BY created_on", queue)
    assert [row["data"] for row in rows] == ['{"n": 1}', '{"n": 2}']
    errors = [one.message for one in caplog.records if one.levelno == logging.ERROR]
    assert len([one for one in errors if "skipping it" in one]) == 1, (bad, errors)


@pytest.mark.parametrize("cursor", [7, [], {"a": 1}, "nonsense"])
async def test_an_invalid_cursor_is_refused_when_the_bridge_opens(
    boss_tables: str, queue: str, url: str, cursor: Any
) -> None:
    created(queue)
    async with App(url) as app:
        await app.state.set("pgboss/badboss/relayed", cursor)
    bridge = PgBoss(boss_url(), produce={"thing.sent": queue}, **QUICK)
    with pytest.raises(ConfigError, match="'pgboss/badboss/relayed' must contain the cursor"):
        async with App(url, bridges=[bridge]):
            pass


# The import


async def test_an_import_skips_what_it_cannot_move(boss_tables: str, queue: str, url: str) -> None:
    created(queue)
    other = f"{queue}-other"
    created(other)
    skipped = {insert(queue, data): part for data, part in BAD_DATA.values()}
    skipped |= {insert(queue, "'1'", f"start_after = '{date}'"): "start_after" for date in ("infinity", "294276-01-01")}
    shared = insert(queue, "'1'")
    do("INSERT INTO badboss.job (name, id, data) VALUES ($1, $2::text::uuid, '2')", other, shared)
    moved = [insert(queue, data) for data in ODD_DATA]
    moved += [insert(queue, "'1'", columns) for columns in ODD_COLUMNS]
    moved.append(insert(queue, "'1'", "start_after = '9999-12-31'"))
    moved.append(insert(queue, "'1'", "retry_delay = -9, retry_delay_max = -9, retry_backoff = true"))
    for key, cron, tz in (
        ("bad-cron", "every day", "UTC"),
        ("bad-tz", "0 12 * * *", "../../etc"),
        ("x/y", "0 1 * * *", "UTC"),
    ):
        do("INSERT INTO badboss.schedule (name, key, cron, timezone) VALUES ($1, $2, $3, $4)", queue, key, cron, tz)
    do("INSERT INTO badboss.schedule (name, key, cron, data) VALUES ($1, 'bad-data', '0 1 * * *', '1e400')", queue)
    do("INSERT INTO badboss.schedule (name, key, cron) VALUES ($1, 'good', '0 1 * * *')", queue)
    async with App(url) as app:
        seen = await PgBossImport(app, boss_url(), schema=SCHEMA, queues=[queue, other]).preview()
        report = await PgBossImport(app, boss_url(), schema=SCHEMA, queues=[queue, other]).move()
        assert seen == report
        assert report.jobs == {queue: len(moved)}
        assert report.schedules == [f"{queue}.good"]
        reasons = {one.id: one.reason for one in report.skipped}
        for id, part in skipped.items():
            assert part in reasons.pop(id)
        assert "must be unique" in reasons.pop(shared)
        assert sorted(reasons) == ["bad-cron", "bad-data", "bad-tz", "x/y"]
        left = {str(row["id"]) for row in do("SELECT id FROM badboss.job WHERE name = ANY ($1)", [queue, other])}
        assert left == {*skipped, shared}
        # What was moved can be read and run.
        listed = [await app.jobs.list(queue, state, limit=1000) for state in ("waiting", "delayed")]
        assert {one.id for page in listed for one in page} == set(moved)


# Schemas


@pytest.mark.parametrize(
    ("table", "match"),
    [
        ("CREATE TABLE strange.version (version text); INSERT INTO strange.version VALUES ('twelve')", "no pg-boss"),
        ("CREATE TABLE strange.version (number int)", "no pg-boss"),
        ("CREATE TABLE strange.version (version int); INSERT INTO strange.version VALUES (NULL)", "no pg-boss"),
        ("CREATE TABLE strange.version (version int)", "no pg-boss"),
        ("CREATE TABLE strange.version (version int); INSERT INTO strange.version VALUES (-1)", "version -1"),
        ("CREATE TABLE strange.version (version int); INSERT INTO strange.version VALUES (99)", "lacks job.blocked"),
        ("SELECT 1", "no pg-boss"),
    ],
)
async def test_a_schema_of_another_program_is_refused(boss_tables: str, table: str, match: str) -> None:
    postgres_server.server().run(f"DROP SCHEMA IF EXISTS strange CASCADE; CREATE SCHEMA strange; {table}")
    with pytest.raises(PgBossSchema, match=match):
        async with App(":memory:", bridges=[PgBoss(boss_url(), schema="strange")]):
            pass
