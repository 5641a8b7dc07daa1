"""Files that somebody edited, cut or mixed up: each is refused with nothing written, or imports consistent runs."""

from __future__ import annotations

import os
import re
from typing import Any

import export_mutants
import msgspec
import pytest
from export_mutants import HANDLERS, Line, build_mutants, to_file

from penstock import App, PenstockError
from penstock.app.export_file import open_export
from penstock.app.export_format import BadExport
from penstock.core.errors import RunError, UnknownKind
from penstock.testing.contracts.store_under_test import take_snapshot

# What a file may lack or change and still be an export of consistent runs, and why.
ACCEPTED = {
    r"nothing|blank lines|CRLF|reversed|without \w+": "complete lines, in any order and number",
    r"\w+: (without|no) (state|memos|waits|ended)": "the step runs again without it, and registers its waits again",
    r"\w+: (state|memos) is an object|child: waits of done": "the same: nothing is in it",
    r"\w+: without kind": "a flow, as in format 2",
    r"\w+: without (starts|routes)": "no child has yet to start",
    r"\w+: without record\.done": "the steps that ran once are forgotten",
    r"event: waits\.0\.topic is .*": "another event is waited for",
    r"\w+: (jobs|ended)\.0\.payload is .*|\w+: job's payload is .*|\"payload\": 1.5e3 in place": "another input",
    r"\w+: (events\.(0|-1)|record)\.correlationId is .*": "another correlation id",
    r"\w+: (without )?events\.-1\.(data|meta)( is (null|an object))?": "an event that has no more to say",
    r"\w+: without event \d": "the newest event of an open run is not there yet",
    r"\w+: (created|updated|record\.(startedMs|failed)|(jobs|ended)\.0\.priority) is a number": "another number in range",
    r"\w+: ((jobs|ended|waits)\.0\.due|waits\.0\.body\.at) is a number": "another time in range",
    r"\w+: (without )?record\.(results|resultsBytes|failures|failed|followed|version)( is (NUL|a path|a list|empty text))?": "these have defaults",
    r"trigger: (without )?waits\.0\.body\.(name|type|tokens)( is .*)?": "texts, and tokens that the step issues again",
}
FIRST = {"file": 0, "postgres": 1, "redis": 2}  # each store takes others of the mutants
IS_FULL = os.environ.get("PENSTOCK_FAULTS") == "full"
REFUSED_STRIDE, ACCEPTED_STRIDE = (12, 24) if IS_FULL else (48, 40)  # every mutant is checked in memory


async def _export(memory: Any) -> list[Line]:
    async with memory(*HANDLERS) as a:
        return await export_mutants.export_runs(a)


def _check(data: bytes, app: Any) -> None:
    with open_export(data) as file:
        for _ in file.check(app._engines):
            pass


def _is_accepted(name: str) -> bool:
    return any(re.fullmatch(pattern, name) for pattern in ACCEPTED)


async def test_every_mutant_is_accepted_or_refused_by_name(memory: Any) -> None:
    lines = await _export(memory)
    accepted, refused = [], 0
    async with memory(*HANDLERS) as a:
        for name, data in build_mutants(lines):
            try:
                _check(data, a)
            except (BadExport, UnknownKind) as problem:
                refused += 1
                _check_message(name, str(problem))
            else:
                accepted.append(name)
    assert refused > 1500
    assert [name for name in accepted if not _is_accepted(name)] == []
    assert len(accepted) > 100


def _check_message(name: str, message: str) -> None:
    """An error has the line, and what to do."""
    assert re.match(r"line \d+|the file is compressed|the file starts with a byte order mark", message), name
    assert len(message) < 700, name
    if "is not a run" in message:
        assert message.endswith(". Export the run again, or remove the line"), name


def _sort(a: Any, lines: list[Line]) -> tuple[list[tuple[str, bytes]], list[tuple[str, bytes]]]:
    """Return the mutants that can be imported, and the others."""
    accepted, refused = [], []
    for name, data in build_mutants(lines):
        try:
            _check(data, a)
        except PenstockError:
            refused.append((name, data))
        else:
            accepted.append((name, data))
    return accepted, refused


async def test_nothing_is_written_if_a_file_is_refused(shared: Any, memory: Any, shared_url: str) -> None:
    lines = await _export(memory)
    async with shared(*HANDLERS) as b:
        mutants = _sort(b, lines)[1][FIRST[_kind(shared_url)] :: REFUSED_STRIDE]
        assert len(mutants) > 30
        await _populate(b)
        before = await take_snapshot(b.store)
        for name, data in mutants:
            with pytest.raises((BadExport, UnknownKind)):
                await b.runs.import_(data)
            assert await take_snapshot(b.store) == before, name


async def test_what_is_accepted_is_consistent(shared_url: str, memory: Any, app_factory: Any, new_url: Any) -> None:
    lines = await _export(memory)
    async with memory(*HANDLERS) as a:
        mutants = _sort(a, lines)[0][FIRST[_kind(shared_url)] :: ACCEPTED_STRIDE]
    assert len(mutants) > 3
    for name, data in mutants:
        async with app_factory(new_url())(*HANDLERS) as b:
            await _populate(b)
            others = await _own(b)
            imported = await b.runs.import_(data)
            assert await _own(b) == others, name
            assert await b.store.stuck_runs() == [], name
            by_run = {(line := msgspec.json.decode(text))["run"]: line for text in data.splitlines() if text.strip()}
            assert set(imported) == set(by_run)
            for run in imported:
                assert not any(event.is_unreadable for event in await b.stream(run)), name
                exported = msgspec.json.decode(await b.runs.export(run))
                for event in by_run[run]["events"]:
                    if event.get("data", 0) is None:
                        del event["data"]  # as nothing
                for part in ("record", "status", "events", "state", "waits"):
                    assert exported[part] == by_run[run].get(part, type(exported[part])()), (name, part)
            _check(b"\n".join([line async for line in b.runs.export_all()]), b)


async def test_a_run_that_exists_is_refused(shared: Any, memory: Any) -> None:
    lines = await _export(memory)
    async with shared(*HANDLERS) as b:
        await _populate(b)
        await b.runs.import_(to_file(lines[:3]))
        before = await take_snapshot(b.store)
        with pytest.raises(RunError, match="run 'done' already exists in this store; nothing was imported"):
            await b.runs.import_(to_file(lines[3:] + lines[:1]))
        assert await take_snapshot(b.store) == before


async def test_a_file_never_replaces_what_the_store_has(shared: Any, memory: Any) -> None:
    lines = await _export(memory)
    (event,) = [line for line in lines if line["run"] == "event"]
    (pinned,) = [line for line in lines if line["run"] == "pinned"]
    (table,) = pinned["state"]
    async with shared(*HANDLERS) as b:
        await _populate(b)
        await b.events.append("nq:flow:event", "noted", 1)
        with pytest.raises(RunError, match="stream 'nq:flow:event' already has other events in this store"):
            await b.runs.import_(to_file([event]))
        await b.start("pinned", key="mine")  # it pins the same table
        pin = await b.store.state(table)
        await b.runs.import_(to_file([pinned]))
        assert await b.store.state(table) == pin


@pytest.mark.parametrize(("field", "value"), [("run", "victim"), ("originalJobId", "victim.order.1")])
async def test_a_dead_letter_of_another_run_is_refused(memory: Any, field: str, value: str) -> None:
    (failed,) = [line for line in await _export(memory) if line["run"] == "failed"]
    (letter,) = [job for job in failed["jobs"] if job["id"].endswith(".dlq")]
    async with memory(*HANDLERS) as b:
        _check(to_file([failed]), b)
        letter["payload"][field] = value
        with pytest.raises(BadExport, match=r"payload must be the dead letter of job 'failed\.charge\.1'.*victim"):
            _check(to_file([failed]), b)


async def _populate(b: App) -> None:
    """Write what no import may touch: shared state, and a run with state of its own."""
    await b.state.set("stock", 7)
    await b.start("waits", "event", key="victim")
    await b.state.of_run("victim").set("x", "own")


async def _own(b: App) -> Any:
    store = b.store
    events = await store.read("nq:flow:victim")
    return await store.states("shared/"), await store.states("run/victim/"), await store.run("victim"), events


def _kind(url: str) -> str:
    return {"sqlite": "file", "postgresql": "postgres"}.get(url.partition(":")[0], url.partition(":")[0])
