"""Export and import of runs: they continue in the other store with what they recorded."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest

from penstock import App, Permanent, SyncApp, flow, step
from penstock.app import export_format
from penstock.app.export_format import BadExport
from penstock.core.errors import BadArgument, ConfigError, RunError, UnknownRun
from penstock.core.ids import step_job_id
from penstock.flows.routing import PartsWork
from penstock.ports.store import JobRow
from penstock.ports.unit import DELIVERIES, READ_PARTS, JobState, NewJob
from penstock.stores.sqlite import SqliteStore
from penstock.testing.clock import FakeClock
from penstock.testing.until import until

YEAR_2001_MS = 1_000_000_000_000
MANY = 40


class Shop:
    """A flow that charges once, then waits for an event, a trigger and an hour."""

    def __init__(self) -> None:
        self.charged = 0
        self.tokens: list[str] = []

        @flow("shop")
        async def order(_input: Any, ctx: Any) -> Any:
            charged = await ctx.run("charge", self.charge)
            paid = await ctx.wait.event("paid", match={"order": 7})
            trigger = await ctx.wait.trigger("approval")
            self.tokens.append(trigger.token)
            approved = await trigger.wait()
            return [charged, paid.data["by"], approved]

        self.order = order

    def charge(self) -> int:
        self.charged += 1
        return self.charged


async def test_an_imported_run_continues_to_wait_for_its_event(app: Any, shared: Any) -> None:
    shop = Shop()
    async with app(shop.order) as a, a.workers.background():
        run = await a.start("shop", 1)
        await a.wait_for_step(run, "order", "suspended")
        line = await a.runs.export(run)
    async with shared(shop.order) as new:
        assert list(await new.runs.import_(line)) == [run]
        assert [(wait.kind, wait.event) for wait in await new.waits.list(run=run)] == [("event", "paid")]
        async with new.workers.background():
            await new.emit("paid", {"order": 7, "by": "ada"})
            await _until_trigger(new, run)
            await new.waits.fire(shop.tokens[-1], "yes")
            assert await new.result(run, timeout=20) == [1, "ada", "yes"]
        assert shop.charged == 1


async def test_a_token_works_after_the_import(app: Any, shared: Any) -> None:
    shop = Shop()
    async with app(shop.order) as a, a.workers.background():
        run = await a.start("shop", 1)
        await a.wait_for_step(run, "order", "suspended")
        await a.emit("paid", {"order": 7, "by": "ada"})
        await _until_trigger(a, run)
        token = shop.tokens[-1]
        line = await a.runs.export(run)
    async with shared(shop.order) as new:
        assert list(await new.runs.import_(line)) == [run]
        await new.waits.fire(token, "yes")
        async with new.workers.background():
            assert await new.result(run, timeout=20) == [1, "ada", "yes"]


async def test_an_imported_paused_run_stays_paused(app: Any, shared: Any) -> None:
    shop = Shop()
    async with app(shop.order) as a, a.workers.background():
        run = await a.start("shop", 1)
        await a.wait_for_step(run, "order", "suspended")
        await a.runs.pause(run, "for the move")
        line = await a.runs.export(run)
    async with shared(shop.order) as new:
        assert list(await new.runs.import_(line)) == [run]
        assert [row.id for row in await new.runs.list(status="paused")] == [run]
        async with new.workers.background():
            await new.wait_for_step(run, "order", "held")
            await new.runs.resume(run)
            await new.wait_for_step(run, "order", "suspended")


async def test_times_and_events_of_old_runs_are_kept(memory: Any, shared: Any) -> None:
    @flow("old", emits=["paid"])
    async def begin(_input: Any, ctx: Any) -> None:
        ctx.emit("paid", {"by": "ada"})

    @step(on="paid")
    async def end(paid: Any) -> Any:
        return paid["by"]

    async with memory(begin, end, clock=FakeClock(YEAR_2001_MS)) as a, a.workers.background():
        await a.start("old", key="done", correlation_id="c-7", tags={"from": "past"})
        await a.result("done", timeout=20)
        line, events, rows = await a.runs.export("done"), await a.stream("done"), await a.runs.list()
    async with shared(begin, end) as b:
        await b.runs.import_(line)
        assert await b.stream("done") == events
        assert events[0].ts.startswith("2001-09-09")
        assert await b.runs.list() == rows == await b.runs.list(tags={"from": "past"})
        assert await b.result("done") == "ada"
        assert await b.runs.export("done") == line


async def test_an_import_while_a_worker_runs(memory: Any, shared: Any) -> None:
    shop = Shop()
    async with memory(shop.order) as a:
        await a.start("shop", 1, key="first")
        await a.start("shop", 1, key="second")
        line = b"\n".join([found async for found in a.runs.export_all()])
    async with shared(shop.order) as b, b.workers.background():
        seen: list[str] = []
        assert list(await b.runs.import_(line, on_run=seen.append)) == ["first", "second"] == seen
        await b.wait_for_step("first", "order", "suspended")
        await b.wait_for_step("second", "order", "suspended")
        await b.start("shop", 1, key="third")  # the App's own clock did not move
        (third,) = await b.runs.list(since="1h", limit=1)
        assert third.id == "third"


async def test_failed_steps_of_an_imported_run_are_retried(app: Any, shared: Any) -> None:
    calls: list[str] = []

    @flow("fails")
    async def fails(_input: Any, ctx: Any) -> Any:
        charged = await ctx.run("charge", lambda: len(calls))
        calls.append("tried")
        if len(calls) == 1:
            raise ValueError("not yet")
        return charged

    async with app(fails) as a, a.workers.background():
        await a.start("fails", key="bad")
        assert await a.wait_for_end("bad") == "failed"
        line = await a.runs.export("bad")
    async with shared(fails) as b:
        await b.runs.import_(line)
        assert [letter.run for letter in await b.list_dead_letters()] == ["bad"]
        assert (await b.runs.retry("bad")).refused == {}
        async with b.workers.background():
            assert await b.result("bad", timeout=20) == 0  # the recorded call is not made again


async def test_a_pinned_trigger_table_moves_with_its_run(app: Any, shared: Any) -> None:
    @flow("pinned", version="1", on_change="continue", emits=["go"])
    async def begin(_input: Any, ctx: Any) -> None:
        ctx.emit("go", 1)

    @step(on="go")
    async def end(number: int) -> int:
        return number + 1

    async with app(begin, end) as a:
        await a.start("pinned", key="p")
        line = await a.runs.export("p")
    (key,) = msgspec.json.decode(line)["state"]
    assert key.startswith("table/")
    async with shared(begin, end) as b:
        await b.runs.import_(line)
        assert await b.store.state(key) is not None
        async with b.workers.background():
            assert await b.result("p", timeout=20) == 2


async def test_files_of_format_2_are_flows(memory: Any, shared: Any) -> None:
    shop = Shop()
    async with memory(shop.order) as a:
        await a.start("shop", 1, key="old")
        saved = msgspec.json.decode(await a.runs.export("old"))
    assert saved.pop("kind") == "flow"
    async with shared(shop.order) as b:
        await b.runs.import_(msgspec.json.encode({**saved, "penstock": 2}))
        assert (await b.runs.list())[0].kind == "flow"
        async with b.workers.background():
            await b.wait_for_step("old", "order", "suspended")


async def test_nothing_is_imported_if_one_line_is_wrong(memory: Any, shared: Any) -> None:
    shop = Shop()
    async with memory(shop.order) as a:
        await a.start("shop", 1, key="first")
        await a.start("shop", 1, key="second")
        first, second = [line async for line in a.runs.export_all()]
    wrong: list[tuple[bytes, type[Exception], str]] = [
        (first.replace(b'"correlationId"', b'"other"'), BadExport, "line 2 is not a run written by"),
        (first.replace(b'"step":"order"', b'"step":7'), BadExport, "line 2 is not a run written by"),
        (first.replace(b'"queue"', b'"place"'), BadExport, "line 2 is not a run written by"),
        (first.replace(b'"penstock":3', b'"penstock":9'), BadExport, r"newer version of Penstock \(format 9\)"),
        (second, BadExport, "line 2: run 'second' occurs twice in the file"),
    ]
    async with shared(shop.order) as b:
        for line, error, message in wrong:
            with pytest.raises(error, match=message):
                await b.runs.import_(second + b"\n" + line)
        with pytest.raises(BadArgument, match=r"data must be the bytes .*got a str"):
            await b.runs.import_(second.decode())
        assert await b.runs.list() == []
        await b.runs.import_(first)
        with pytest.raises(RunError, match="run 'first' already exists in this store; nothing was imported"):
            await b.runs.import_(second + b"\n" + first)
        assert [row.id for row in await b.runs.list()] == ["first"]
        assert await b.runs.import_(b"\n") == []


async def test_stores_that_cannot_be_opened_a_second_time(memory: Any, tmp_path: Path) -> None:
    shop = Shop()
    async with memory(shop.order) as a:
        line = await a.runs.export(await a.start("shop", 1, key="first"))
        with pytest.raises(RunError, match="already exists in this store"):
            await a.runs.import_(line)
        line = line.replace(b'"first', b'"other')
        with pytest.raises(ConfigError, match=r"cannot be imported into ':memory:', .* Use a file, such as App"):
            await a.runs.import_(line)
        with pytest.raises(UnknownRun, match="no run with id 'nope'"):
            await a.runs.export("nope")
    store = SqliteStore(str(tmp_path / "own.db"), clock=FakeClock())
    async with App(store=store, handlers=()) as b:
        with pytest.raises(ConfigError, match=r"a store passed as store=, .* Pass the URL instead"):
            await b.runs.import_(line)
        assert await b.runs.list() == []


def test_export_and_import_without_an_event_loop(shared_url: str) -> None:
    shop = Shop()
    with SyncApp(":memory:", handlers=[shop.order]) as a:
        a.start("shop", 1, key="first")
        a.start("shop", 1, key="second")
        lines = list(a.runs.export_all())
        assert lines[0] == a.runs.export("first")
    with SyncApp(shared_url, handlers=[shop.order]) as b:
        assert list(b.runs.import_(b"\n".join(lines))) == ["first", "second"]
        assert [event.kind for event in b.events.read("nq:flow:first")] == ["flow.started"]


async def test_an_imported_job_keeps_its_rate_key(memory: Any, shared: Any) -> None:
    @flow("mail", rate_limit="1/h", rate_key="to", queue="mail")
    async def mail(_input: Any) -> None: ...

    async with memory(mail) as a:
        line = await a.runs.export(await a.start("mail", {"to": "ada"}, key="m"))
    async with shared(mail) as b:
        engine = b._engines.of_run_kind("flow")
        saved = msgspec.json.decode(line)
        restored = engine.restore_job(
            "m",
            msgspec.json.encode(saved["record"]),
            NewJob("m.mail.1", "mail", "mail", b'{"to":"ada"}', opts=b'{"step":"mail"}'),
        )
        assert restored.rate_key == "ada"


def _make_orders(fails: bool) -> Any:
    """Return a flow with so many instances of a step that their results and compensations are beside the record."""

    @flow("orders", emits=["item"])
    async def orders(_input: Any, ctx: Any) -> None:
        for n in range(MANY):
            ctx.emit("item", n)

    @step(on="item", mode="each", compensation="release", emits=["reserved"], retry=1)
    async def reserve(input: int, ctx: Any) -> Any:
        if fails and ctx.n == MANY:
            raise Permanent("sold out")
        return [input, "x" * 60]

    @step()
    async def release(_input: Any, ctx: Any) -> None:
        await ctx.state.patch("released", lambda count: (count or 0) + 1)

    return orders, reserve, release


@pytest.mark.parametrize("fails", [False, True], ids=["results", "compensations"])
async def test_an_imported_run_reads_the_parts_of_its_record(
    app: Any, shared: Any, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    """It was exported before the engine's job had read them."""
    definitions, read = _make_orders(fails), PartsWork._read

    async def fail(_work: PartsWork) -> None:
        raise ConnectionError

    monkeypatch.setattr(PartsWork, "_read", fail)
    async with app(*definitions) as a:
        run = await a.start("orders")
        async with a.workers.background():
            await until(lambda: _parts_jobs(a), 60)
        line = await a.runs.export(run)
    monkeypatch.setattr(PartsWork, "_read", read)
    async with shared(*definitions) as b:
        assert list(await b.runs.import_(line)) == [run]
        async with b.workers.background():
            assert await b.wait_for_end(run) == ("compensated" if fails else "completed")
        if fails:
            assert await b.state.of_run(run).get("released") == MANY - 1
        else:
            assert sorted(n for n, _ in await b.result(run)) == list(range(MANY))


async def _parts_jobs(a: Any) -> list[JobRow]:
    states = (JobState.WAITING, JobState.DELAYED)
    return [job for state in states for job in await a.store.jobs(DELIVERIES, state) if job.name == READ_PARTS]


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"what": "compensations", "part": 99}, "compensations must be parts that the record has, got 99"),
        ({"what": "kind", "part": 1, "kind": "paid"}, "kind must be parts that the record has, got 1"),
        ({"n": 99}, "must be 'r.--parts.99', once"),
        ({"what": "secrets"}, "Invalid enum value 'secrets'"),
    ],
)
async def test_parts_that_the_record_does_not_have_are_refused(
    memory: Any, shared: Any, monkeypatch: pytest.MonkeyPatch, change: dict[str, Any], error: str
) -> None:
    async def fail(_work: PartsWork) -> None:
        raise ConnectionError

    monkeypatch.setattr(PartsWork, "_read", fail)
    definitions = _make_orders(False)
    async with memory(*definitions) as a:
        await a.start("orders", key="r")
        async with a.workers.background():
            await until(lambda: _parts_jobs(a), 60)
        saved = msgspec.json.decode(await a.runs.export("r"))
    saved["routes"][0]["payload"] |= change
    async with shared(*definitions) as b:
        with pytest.raises(BadExport, match=error):
            await b.runs.import_(msgspec.json.encode(saved))


async def _until_trigger(a: Any, run: str) -> None:
    async def asleep() -> bool:
        # The trigger first: the step was suspended before, too, until the event came.
        if not await a.waits.list(run=run, kind="trigger"):
            return False
        return bool((await a.store.job(step_job_id(run, "order", 1))).state == "suspended")

    await until(asleep)


async def _write_file(memory: Any, shop: Shop, path: Path) -> bytes:
    async with memory(shop.order) as a:
        for key in ("first", "second"):
            await a.start("shop", 1, key=key)
        data = b"\n".join([line async for line in a.runs.export_all()])
    path.write_bytes(data)
    return data


@pytest.mark.parametrize("source", ["path", "file", "file from a position", "pipe"])
async def test_a_file_is_read_line_by_line(memory: Any, shared: Any, tmp_path: Path, source: str) -> None:
    shop, path = Shop(), tmp_path / "runs.jsonl"
    data = await _write_file(memory, shop, path)
    async with shared(shop.order) as b:
        if source == "path":
            imported = await b.runs.import_(path)
        elif source == "pipe":
            end, other = os.pipe()
            os.write(other, data)
            os.close(other)
            with open(end, "rb") as file:
                imported = await b.runs.import_(file)
        else:
            path.write_bytes(b"not a run\n" + data if "position" in source else data)
            with path.open("rb") as file:
                if "position" in source:
                    file.readline()
                imported = await b.runs.import_(file)
        assert list(imported) == ["first", "second"]
        assert sorted(row.id for row in await b.runs.list()) == ["first", "second"]


async def test_a_file_that_changes_during_the_import(memory: Any, shared: Any, tmp_path: Path) -> None:
    shop, path = Shop(), tmp_path / "runs.jsonl"
    first, second = (await _write_file(memory, shop, path)).splitlines()
    gap = b"\n" + b" " * 100_000  # more than one buffer
    path.write_bytes(first + gap + second)

    def change(_run: str) -> None:
        path.write_bytes(first + gap + second.replace(b'"second', b'"forged'))

    async with shared(shop.order) as b:
        with pytest.raises(BadExport, match=r"line 2: another program changed the file.*The runs before this line"):
            await b.runs.import_(path, on_run=change)
        assert [row.id for row in await b.runs.list()] == ["first"]


async def test_a_file_that_cannot_be_read(shared: Any, tmp_path: Path) -> None:
    async with shared() as b:
        for path in (tmp_path / "nope", tmp_path, Path("a\0b")):
            with pytest.raises(BadArgument, match=r"cannot read .*; pass the path of a file"):
                await b.runs.import_(path)
        (tmp_path / "text").write_text("")
        with (tmp_path / "text").open() as text, (tmp_path / "new").open("wb") as new:
            for file in (text, new, io.StringIO("{}"), 7, None):
                with pytest.raises(BadArgument, match="opened with mode 'rb', got a"):
                    await b.runs.import_(file)


async def test_a_long_line_of_a_file(shared: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export_format, "MAX_LINE_BYTES", 1000)
    path = tmp_path / "runs.jsonl"
    path.write_bytes(b"\n" + b"x" * 5000)
    async with shared() as b:
        with pytest.raises(BadExport, match="line 2 has more than 0 MB"):
            await b.runs.import_(path)
