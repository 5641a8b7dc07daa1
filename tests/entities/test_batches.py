"""Several events of an entity that are handled together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import RetryPolicy
from penstock.core.errors import DefinitionError, EntityFailed, EntityRefused, SchemaViolation
from penstock.core.retry import Backoff
from penstock.entities import FunctionService, Rejected, States, Transition, decide, entity
from penstock.entities.decide import Decision, Emitted, Handled, NextJob, Rules, on_dead, on_emit, on_handled, on_split
from penstock.entities.event_work import UnreadableEntityWork
from penstock.entities.record import EntityRecord, Mail, TakenMail, decode, encode
from penstock.ports.unit import Claim

AT_ONCE = RetryPolicy(2, Backoff("fixed", 1, jitter=False))
TIMEOUT_S = 30
calls: list[Any] = []


@pytest.fixture(autouse=True)
def _no_calls() -> None:
    calls.clear()


@dataclass
class Reading:
    value: Any


async def add(data: dict[str, Any], readings: list[Reading]) -> None:
    values = [one.value for one in readings]
    calls.append(values)
    if "poison" in values:
        raise OSError("the network is away")
    if "bad" in values:
        raise Rejected("out of range")
    data["sum"] = data.get("sum", 0) + sum(values)


@entity("meter", retry=AT_ONCE)
class Meter:
    events = {"read": Reading}
    batches = {"read": 4}
    states = States("on", idles=["on"], finals=["off"])
    on_rejected = "refuse"
    transitions = [Transition("read", "on", "on", actions=[add]), Transition("stop", "on", "off")]


async def send(app: Any, *values: Any) -> list[Any]:
    return [await app.entities.emit("meter-1", "read", {"value": value}) for value in values]


@pytest.mark.spec("002-9.3")
async def test_events_that_wait_are_handled_together(app: Any) -> None:
    async with app(Meter) as a:
        sent = await send(a, *range(1, 8))
        stop = await a.entities.emit("meter-1", "stop")
        late = (await send(a, 100))[0]
        async with a.workers.background():
            ended = [await one.result(timeout=TIMEOUT_S) for one in sent]
            assert (await stop.result(timeout=TIMEOUT_S)).to == "off"
            with pytest.raises(EntityRefused, match="is final"):
                await late.result(timeout=TIMEOUT_S)
        # The first one had its job before the others came; an event of another kind is never part of a batch.
        assert calls == [[1], [2, 3, 4, 5], [6, 7]]
        assert [(one.n, one.from_, one.to) for one in ended] == [(n, "on", "on") for n in range(1, 8)]
        view = await a.entities.get("meter-1")
        assert (view.data, view.handled, view.waiting, view.status) == ({"sum": 28}, 9, {}, "off")
        events = await a.events.read_all("nq:entity:meter-1")
        assert [event.meta.get("batch") for event in events if event.kind == "entity.transitioned"] == [
            None, 4, 4, 4, 4, 2, 2, None,
        ]  # fmt: skip
        assert sum(event.kind == "entity.started" for event in events) == 5
        assert await a.store.stuck_runs() == []


@pytest.mark.parametrize("wrong", ["poison", "bad"])
async def test_events_that_fail_together_are_handled_one_by_one(app: Any, wrong: str) -> None:
    async with app(Meter) as a:
        sent = await send(a, 1, 2, wrong, 4, 5, 6, 7)
        async with a.workers.background():
            with pytest.raises(EntityFailed if wrong == "poison" else EntityRefused):
                await sent[2].result(timeout=TIMEOUT_S)
            for one in (*sent[:2], *sent[3:]):
                assert (await one.result(timeout=TIMEOUT_S)).to == "on"
        attempts = 2 if wrong == "poison" else 1  # a refusal is not tried again
        batch, alone = [2, wrong, 4, 5], [[2], *[[wrong]] * attempts, [4], [5]]
        assert calls == [[1], *[batch] * attempts, *alone, [6, 7]]
        view = await a.entities.get("meter-1")
        assert (view.data, [one.n for one in view.history]) == ({"sum": 25}, list(range(1, 8)))
        letters = await a.list_dead_letters()
        assert [letter.original_data for letter in letters] == ([{"value": "poison"}] if wrong == "poison" else [])
        assert await a.store.stuck_runs() == []


async def test_without_the_split_an_event_fails_for_another_one(memory: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mutant of the test above: a batch that fails for good is over."""

    def give_up(record: EntityRecord, mail: TakenMail, reason: str, meta: dict[str, Any]) -> Decision:
        ended = [Emitted("failed", {"error": reason}, {**meta, "n": n}) for n in range(mail.first, mail.n + 1)]
        return decide._finish(record, ended, Rules(batches={"read": 4}))

    monkeypatch.setattr("penstock.entities.event_work.on_split", give_up)
    with pytest.raises(EntityFailed):
        await test_events_that_fail_together_are_handled_one_by_one(memory, "poison")


async def test_a_payload_is_checked_when_it_is_emitted(memory: Any) -> None:
    async with memory(Meter) as a:
        with pytest.raises(SchemaViolation):
            await a.entities.emit("meter-1", "read", {"valu": 1})


@pytest.mark.parametrize("payload", [b"[1]", b"[1,2,3]", b"{}", b"7", b"["])
async def test_a_damaged_job_of_several_events_is_unreadable(memory: Any, payload: bytes) -> None:
    async with memory(Meter) as a:
        record = encode(EntityRecord("meter", "meter-1", "on", "default", 0, received=3, current=3))
        opts, id = b'{"n":3,"event":"read","count":2}', "meter-1.event.3"
        claim = Claim(id, "default", "meter", payload, opts, id, 1, "t", 0, 0, 1, "meter-1", 1, record, {}, 0, "entity")
        engine = a._entity_engine
        assert isinstance(await engine.open(claim), UnreadableEntityWork)
        whole = msgspec.structs.replace(claim, payload=b'[{"value":1},{"value":2}]')
        assert not isinstance(await engine.open(whole), UnreadableEntityWork)
        endless = msgspec.structs.replace(whole, opts=b'{"n":3,"event":"read","count":1000000000}')
        assert (await engine.open(endless)).claim.unreadable is not None


class Lost(Exception):
    """The answer of the database was lost: nobody knows whether it committed."""


class Rows:
    """A table of the user's that remembers the last key."""

    def __init__(self, lost: int) -> None:
        self.row: dict[str, Any] = {"urn": "meter-1", "status": "on", "sum": 0}
        self.lost = lost  # so many updates of several readings are committed, and then fail

    def update(self, row: dict[str, Any], status: str, key: str) -> None:
        is_batch = len(row.pop("last")) > 1
        self.row = {**row, "status": status, "key": key}
        if is_batch and self.lost:
            self.lost -= 1
            raise Lost


async def add_row(row: dict[str, Any], readings: list[int]) -> None:
    row["sum"] += sum(readings)
    row["last"] = readings


@pytest.mark.parametrize("lost", [1, 5], ids=["once", "each time"])
async def test_a_batch_whose_update_was_committed_is_not_applied_again(app: Any, lost: int) -> None:
    """It is found by its key: by the next attempt, and by the events one by one if no attempt is left."""
    rows = Rows(lost)

    @entity("meter", retry=AT_ONCE)
    class Stored:
        batches = {"read": 8}
        service = FunctionService(
            lambda _urn: dict(rows.row), rows.update, applied=lambda _urn, key: rows.row.get("key") == key
        )
        states = States("on", idles=["on"])
        transitions = [Transition("read", "on", "on", actions=[add_row])]

    async with app(Stored) as a:
        sent = [await a.entities.emit("meter-1", "read", value) for value in (1, 2, 4, 8)]
        async with a.workers.background():
            for one in sent:
                await one.result(timeout=TIMEOUT_S)
            await (await a.entities.emit("meter-1", "read", 16)).result(timeout=TIMEOUT_S)
        assert rows.row["sum"] == 31


@pytest.mark.parametrize(
    ("batches", "message"),
    [
        ({"raed": 4}, "batches of entity 'meter' names event 'raed'; did you mean 'read'"),
        ({"read": 1}, "'read' needs a number from 2 to 64, got 1"),
        ({"read": True}, "'read' needs a number from 2 to 64, got True"),
        (["read"], "batches of entity 'meter' must be a mapping"),
    ],
)
def test_wrong_batches_are_refused(batches: Any, message: str) -> None:
    class Wrong:
        states = States("on", idles=["on"])
        transitions = [Transition("read", "on", "on")]

    Wrong.batches = batches  # type: ignore[attr-defined]
    with pytest.raises(DefinitionError, match=message):
        entity("meter")(Wrong)


# Decisions


def work_off(emitted: list[str], batches: dict[str, int], steps: list[str]) -> tuple[list[int], list[NextJob]]:
    """Emit events and end jobs in a random order, then end all. Return the numbers that ended, in order, and the jobs."""
    record, rules = EntityRecord("meter", "meter-1", "on", "default", 0), Rules(batches=batches)
    left, ended, jobs = list(emitted), list[int](), list[NextJob]()

    def note(decision: Decision) -> EntityRecord:
        if decision.job is not None:
            jobs.append(decision.job)
        ended.extend(one.meta["n"] for one in decision.events if one.kind in ("transitioned", "failed"))
        return decode(encode(decision.record))

    for step in [*steps, *["emit"] * len(emitted), *["end"] * 2 * len(emitted)]:
        if step == "emit" and left:
            record = note(on_emit(record, left.pop(0), str(record.received + 1).encode(), {}, is_new=False))
        elif step != "emit" and record.current is not None:
            job = jobs[-1]
            mail, meta = TakenMail(job.n, job.event or "", job.payload, None, job.count), {"n": job.n}
            if step == "end":
                record = note(on_handled(record, mail, Handled("transitioned", ("on",)), rules, meta, shows_data=True))
            elif job.count > 1:
                record = note(on_split(record, mail, "no", meta))
            else:
                record = note(on_dead(record, {"event": mail.event}, rules, meta))
    return ended, jobs


STEPS = st.lists(st.sampled_from(["emit", "emit", "end", "fail"]), max_size=40)


@given(st.lists(st.sampled_from("xyz"), max_size=20), st.dictionaries(st.sampled_from("xy"), st.integers(2, 5)), STEPS)
def test_batches_keep_the_order_and_handle_each_event_once(
    emitted: list[str], batches: dict[str, int], steps: list[str]
) -> None:
    ended, jobs = work_off(emitted, batches, steps)
    assert ended == list(range(1, len(emitted) + 1))
    for job in jobs:
        first = job.n - job.count + 1
        assert {emitted[n - 1] for n in range(first, job.n + 1)} == {job.event}
        assert job.count <= batches.get(job.event or "", 1)
        numbers = [n.encode() for n in map(str, range(first, job.n + 1))]
        assert bytes(job.payload) == (numbers[0] if job.count == 1 else b"[" + b",".join(numbers) + b"]")


def test_large_payloads_are_not_taken_together() -> None:
    large = msgspec.Raw(b'"' + b"x" * 20_000 + b'"')
    record = EntityRecord("meter", "meter-1", "on", "default", 0, received=4, current=1)
    record.mailbox = [Mail(n, "x", large if n < 4 else msgspec.Raw(b"1")) for n in (2, 3, 4)]
    rules, done = Rules(batches={"x": 9}), Handled("transitioned", ("on",))
    first = on_handled(record, TakenMail(1, "x"), done, rules, {}, shows_data=False).job
    assert (first.n, first.count) == (2, 1)
    second = on_handled(record, TakenMail(2, "x"), done, rules, {}, shows_data=False).job
    assert (second.n, second.count) == (4, 2)


def test_a_batch_that_takes_one_event_too_few_from_the_mailbox_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    original = decide._take_next

    def forget(record: EntityRecord, rules: Rules) -> TakenMail:
        before = list(record.mailbox)
        taken = original(record, rules)
        if taken.count > 1:
            record.mailbox = before[taken.count - 1 :]
        return taken

    assert work_off(["x"] * 4, {"x": 3}, [])[0] == [1, 2, 3, 4]
    monkeypatch.setattr(decide, "_take_next", forget)
    assert work_off(["x"] * 4, {"x": 3}, [])[0] != [1, 2, 3, 4]
