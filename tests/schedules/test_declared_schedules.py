"""`schedule=` in code: stored when a worker starts, updated with the code, removed when no longer declared."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from penstock import flow, job, step
from penstock.core.errors import DefinitionError
from penstock.testing.clock import FakeClock
from penstock.testing.until import until


def report(schedule: Any = None) -> Any:
    @flow("report", schedule=schedule)
    async def report(input: Any) -> Any:
        return input

    return report


async def kept(app: Any) -> dict[str, Any]:
    """Return the schedules that a worker of this App stores."""
    async with app as a, a.workers.background():
        await until(lambda: a._schedule_service._prepared is a.registry)
        return {row.id: row for row in await a.schedules.list()}


async def test_schedules_of_flows_and_jobs(app: Any, clock: FakeClock) -> None:
    @job(queue="clean", schedule={"every": "10s", "id": "sweep", "input": 7, "overlap": "skip"})
    async def clean(input: Any) -> None: ...

    @job(queue="mail", name="digest", schedule="1d")
    async def digest() -> None: ...

    @step(schedule={"cron": "0 9 * * *", "tz": "Europe/Berlin", "catchUp": "none"}, emits=["day.began"])
    async def morning(ctx: Any) -> None:
        ctx.emit("day.began", {})

    @step(on="day.began")
    async def greet(event: Any) -> str:
        return "hello"

    async with app(report("*/5 * * * *"), clean, digest, morning, greet, clock=clock) as a, a.workers.background():
        assert a.registry.problems == ()
        await until(lambda: a._schedule_service._prepared is a.registry)
        rows = {row.id: row for row in await a.schedules.list()}
        assert sorted(rows) == ["digest", "morning", "report", "sweep"]
        assert (rows["sweep"].overlap, rows["morning"].catch_up) == ("skip", "none")
        assert (rows["digest"].name, rows["sweep"].input) == ("digest", 7)
        assert {row.origin for row in rows.values()} == {"code"}
        run = await a.schedules.run_now("morning")
        assert await a.result(run, timeout=20) == "hello"
        a.advance_clock("10s")
        await a.wait_for_state(f"sweep.{clock.now_ms()}", "completed")


@pytest.mark.spec("004-4.3")
async def test_a_declared_schedule_follows_the_code(shared: Any, clock: FakeClock) -> None:
    rows = await kept(shared(report("1h"), clock=clock))
    assert rows["report"].every_ms == 3_600_000
    rows = await kept(shared(report({"every": "2h", "limit": 3}), clock=clock))
    assert (rows["report"].every_ms, rows["report"].limit) == (7_200_000, 3)
    rows = await kept(shared(report({"every": "2h", "id": "other"}), clock=clock))
    assert list(rows) == ["other"]
    assert await kept(shared(report(), clock=clock)) == {}


async def test_only_declared_schedules_of_this_code_are_removed(shared: Any, clock: FakeClock) -> None:
    @flow("elsewhere", schedule="1h")
    async def elsewhere() -> None: ...

    @job(queue="clean", schedule="1h")
    async def clean() -> None: ...

    await kept(shared(elsewhere, clean, clock=clock))
    async with shared(report(), clock=clock) as a:
        await a.schedules.add("by-hand", flow="report", every="1h")
    # This deployment knows neither the other flow nor the job, and by-hand did not come from code.
    assert sorted(await kept(shared(report(), clock=clock))) == ["by-hand", "clean", "elsewhere"]

    @job(queue="clean")
    async def unscheduled() -> None: ...

    assert sorted(await kept(shared(report(), unscheduled, clock=clock))) == ["by-hand", "elsewhere"]


async def test_fired_count_and_pause_survive_a_deploy(shared: Any, clock: FakeClock) -> None:
    async with shared(report("10s"), clock=clock) as a, a.workers.background():
        await until(lambda: a._schedule_service._prepared is a.registry)
        a.advance_clock("10s")

        async def fired() -> bool:
            return (await a.store.schedule("report")).fired == 1

        await until(fired)
        await a.schedules.pause("report")
    row = (await kept(shared(report({"every": "20s"}), clock=clock)))["report"]
    assert (row.fired, row.paused) == (1, True)


async def test_a_reload_updates_declared_schedules(app: Any, tmp_path: Path) -> None:
    def write(schedule: str) -> None:
        (tmp_path / "tidy.py").write_text(f'queue = "tidy"\nconfig = {{{schedule}}}\n\n\ndef handle(input, ctx): ...\n')

    async def ids(a: Any) -> list[str]:
        return [row.id for row in await a.schedules.list()]

    write('"schedule": {"every": "1h", "id": "one"}')
    async with app(dir=tmp_path) as a, a.workers.background():
        for schedule, expected in (
            (None, ["one"]),
            ('"cron": "0 9 * * *"', ["tidy"]),
            ("", []),
        ):
            if schedule is not None:
                write(schedule)
                assert a.reload().problems == ()

            async def there(expected: list[str] = expected) -> bool:
                return await ids(a) == expected

            await until(there)


def test_schedules_of_worker_files(tmp_path: Path, memory: Any) -> None:
    (tmp_path / "nightly.py").write_text(
        'config = {"flow": {"id": "night", "role": "main", "step": "begin"},\n'
        '          "schedule": {"cron": "0 3 * * *", "tz": "Europe/Paris", "catchUp": "all", "input": {"a": 1},\n'
        '                       "start": "2030-01-01T00:00:00+00:00"}}\n\n\ndef handle(input, ctx): ...\n'
    )
    registry = memory(dir=tmp_path).registry
    assert registry.problems == ()
    spec, target = registry.schedules["night"]
    assert (spec.cron, spec.tz, spec.catch_up, target.flow, target.input) == (
        *("0 3 * * *", "Europe/Paris", "all", "night", {"a": 1}),
    )
    assert spec.start_ms == 1_893_456_000_000


@pytest.mark.parametrize(
    ("schedule", "error"),
    [
        ("every day", "invalid cron expression"),
        ("often", "invalid duration"),
        (5, "a schedule must be a cron expression"),
        ({"every": "1h", "cron": "* * * * *"}, "and only one"),
        ({"every": "1h", "overlaps": "skip"}, "unknown key 'overlaps'.*did you mean 'overlap'"),
        ({"every": "1h", "limit": 0}, "limit must be a whole number of at least 1, got 0"),
        ({"every": "1h", "start": "soon"}, "start must be a time"),
        ({"every": "1h", "start": "2030-01-01T00:00:00"}, "has no time zone"),
        ({"every": "1h", "id": "no id"}, "'no id'"),
        ({"every": "1h", "input": object()}, "input"),
    ],
)
def test_an_invalid_declared_schedule_names_its_file(schedule: Any, error: str) -> None:
    with pytest.raises(DefinitionError, match=error) as caught:
        report(schedule)
    assert "test_declared_schedules.py" in str(caught.value.where)


def test_the_input_of_a_schedule_is_validated() -> None:
    with pytest.raises(DefinitionError, match="the input of 'typed'"):

        @flow("typed", input_schema={"type": "object"}, schedule={"every": "1h", "input": 5})
        async def typed(input: Any) -> None: ...


def test_a_step_that_events_start_has_no_schedule() -> None:
    with pytest.raises(DefinitionError, match=r"is started by both a\.b and a schedule"):

        @step(on="a.b", schedule="1h")
        async def both(input: Any) -> None: ...


def test_two_declared_schedules_with_one_id_are_a_problem(memory: Any) -> None:
    @job(queue="other", name="report", schedule="2h")
    async def twin() -> None: ...

    registry = memory(report("1h"), twin).registry
    assert [problem.code for problem in registry.problems] == ["duplicate_schedule"]
    assert registry.schedules["report"][1].flow == "report"
