"""How large the run record gets: it keeps neither the instances of a step nor what they return, only names of steps.

What a wide fan-out returns, and what its compensations need, is in parts beside the record. They are read when the run
ends or is compensated, and nobody sees a difference.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from test_decide import ENTRY, NOW, UnconditionalRouting, ended, on

from penstock import Context, Permanent, flow, step
from penstock.flows.decide import Decider, Decision, Emission, PartLoad
from penstock.flows.record_check import check_record
from penstock.flows.record_parts import (
    LoadedParts,
    compensations_key,
    decode_compensations,
    decode_results,
    results_key,
)
from penstock.flows.run_record import RunRecord, decode, encode
from penstock.handlers.trigger_table import TableStep, TriggerTable
from penstock.testing import TestApp

MANY = 300
RESULT = {"saved": "x" * 40}
MAX_RECORD_BYTES = 10_000


class StoredRun:
    """A run that is decided fact by fact, with the parts of its record in a dict and read at once."""

    def __init__(self, **steps: TableStep) -> None:
        self.table = TriggerTable("shop", "a", {"a": ENTRY, **steps})
        self.record = RunRecord("shop", "r1", NOW)
        self.parts: dict[str, bytes] = {}
        self.sizes: list[int] = []
        self.started: list[str] = []
        self.inputs: list[Any] = []
        self.ends: list[tuple[str, Any]] = []
        self.decide(lambda d: d.on_start(b"null", "start"))

    def decide(self, fact: Callable[[Decider], Decision]) -> None:
        decision = fact(Decider("r1", self.record, self.table, UnconditionalRouting(), NOW, 100_000))
        stored = encode(decision.record)
        if len(self.sizes) % 50 == 0 and not decision.record.closed:
            check_record(stored)
        self.record = decode(stored)
        self.sizes.append(len(stored))
        self.started += [f"{one.step}#{one.n}" for one in decision.starts]
        self.inputs += [json.loads(one.input) for one in decision.starts]
        self.ends += [(e.kind, json.loads(bytes(e.data or b"null"))) for e in decision.events if "flow." in e.kind]
        for write in decision.parts:
            if write.value is None:
                del self.parts[write.key]
            else:
                self.parts[write.key] = write.value
        for load in decision.loads:
            self.decide(lambda d, load=load: d.on_loaded(self._read(load)))  # type: ignore[misc]

    def _read(self, load: PartLoad) -> LoadedParts:
        loaded = LoadedParts(load)
        if load.what != "results":
            loaded.compensations = decode_compensations(self.parts[compensations_key("r1", load.part)])
        for step_, moved in self.record.moved_results.items():
            for part in range(1, moved.parts + 1):
                found = decode_results(self.parts[results_key("r1", step_, part)])
                loaded.results.setdefault(step_, {}).update(found)
        return loaded

    def completes(self, step: str, *emits: str, n: int = 1, result: Any = None) -> None:
        emitted = [Emission(kind, b"null") for kind in emits]
        self.decide(lambda d: d.on_completed(ended(step, n), encode(result), emitted))

    def fails(self, step: str) -> None:
        self.decide(lambda d: d.on_failed(ended(step), {"error": "broken"}, 1))

    def emits(self, kind: str) -> None:
        self.decide(lambda d: d.on_event(Emission(kind, b"null"), "outside"))


def fan_out(count: int, **more: Any) -> StoredRun:
    """A fan-out of `count` instances, which complete from the last to the first."""
    run = StoredRun(item=on("item", mode="each", **more), undo=on(), bad=on("bad"))
    run.completes("a", *["item"] * count, "bad")
    for n in range(count, 0, -1):
        run.completes("item", n=n, result=RESULT)
    return run


def test_a_step_that_ran_once_is_a_name() -> None:
    """A chain of distinct steps: what a step adds to the record is its name and a space."""
    names = [f"step-{n:04}" for n in range(400)]
    run = StoredRun(**{name: on(f"done.{n}") for n, name in enumerate(names)})
    run.completes("a", "done.0")
    for n, name in enumerate(names[:-1], 1):
        run.completes(name, f"done.{n}")
    assert run.sizes[-1] - run.sizes[-201] == 200 * len("step-0000 ")
    assert run.record.steps.keys() == {names[-1]}
    assert run.record.started == len(names) + 1
    run.emits("done.7")  # it starts no step again
    assert run.record.open == 1
    run.completes(names[-1])
    assert run.ends[-1][0] == "flow.completed"


def test_a_done_step_that_starts_again_is_counted() -> None:
    run = StoredRun(item=on("item", mode="each"), last=on("last"))
    run.completes("a", "last", "item")
    run.completes("item", result=1)
    assert "item" not in run.record.steps
    run.emits("item")
    run.completes("item", n=2, result=2)
    run.completes("last")
    assert run.ends[-1][1]["result"] == [1, 2]


@pytest.mark.parametrize("compensated", [{}, {"compensation": "undo"}])
def test_the_record_does_not_grow_with_instances(compensated: dict[str, str]) -> None:
    run = fan_out(MANY, **compensated)
    assert max(run.sizes) < MAX_RECORD_BYTES
    assert len(run.parts) > 8


def test_results_are_those_of_all_instances() -> None:
    run = fan_out(MANY)
    run.completes("bad")
    assert run.ends[-1] == ("flow.completed", {"duration": 0, "result": [RESULT] * MANY})
    assert run.parts == {}


def test_results_that_are_too_large_are_not_read() -> None:
    run = fan_out(1500)
    run.completes("bad")
    assert run.ends[-1] == ("flow.completed", {"duration": 0})


def test_a_step_that_is_followed_has_no_results() -> None:
    run = StoredRun(item=on("item", mode="each"), after=on("after"))
    run.completes("a", *["item"] * MANY)
    for n in range(1, MANY):
        run.completes("item", n=n, result=RESULT)
    run.completes("item", "after", n=MANY, result=RESULT)
    run.completes("after", result="end")
    assert run.ends[-1][1]["result"] == "end"
    assert (run.record.results_bytes, run.record.moved_results) == (len('"end"'), {})


def test_an_event_while_results_are_read_goes_on() -> None:
    """The run is open until they are read: an event may start a step meanwhile."""
    run = fan_out(MANY)
    read, run._read = run._read, lambda load: late.append(load)  # type: ignore[method-assign,func-returns-value,assignment]
    late: list[PartLoad] = []
    with pytest.raises(AttributeError):
        run.completes("bad")
    run._read = read  # type: ignore[method-assign]
    run.emits("item")
    run.decide(lambda d: d.on_loaded(read(late[0])))
    assert not run.record.closed
    run.completes("item", n=MANY + 1, result="late")
    assert run.ends[-1][1]["result"] == [*[RESULT] * MANY, "late"]


def test_every_instance_is_compensated_in_reverse_order() -> None:
    run = fan_out(MANY, compensation="undo")
    run.fails("bad")
    for n in range(1, MANY + 1):
        assert run.inputs[-1] == {"step": "item", "n": n, "input": {"in": 1}, "result": RESULT, "error": "broken"}
        run.completes("undo", n=n)
    assert [kind for kind, _ in run.ends[1:]] == ["flow.compensating", "flow.compensated"]
    steps, more = run.ends[1][1]["steps"], run.ends[1][1]["more"]
    assert (set(steps), len(steps) + more) == ({"item"}, MANY)
    assert not [key for key in run.parts if "compensations" in key]
    assert max(run.sizes) < MAX_RECORD_BYTES


def test_an_event_compensates_what_is_in_parts() -> None:
    run = StoredRun(
        item=on("item", mode="each", compensation="undo", compensate_on=("stop",)),
        other=on("other", mode="each", compensation="undo", compensate_on=("halt",)),
        undo=on(),
        bad=on("bad"),
    )
    run.completes("a", *["item", "other"] * MANY, "bad")
    for n in range(1, MANY + 1):
        run.completes("item", n=n, result=RESULT)
        run.completes("other", n=n, result=RESULT)
    run.emits("stop")
    undone = [one for one in run.inputs if isinstance(one, dict)]
    assert [(one["step"], one["n"]) for one in undone] == [("item", n) for n in range(MANY, 0, -1)]
    for n in range(1, MANY + 1):
        run.completes("undo", n=n)
    run.fails("bad")
    for n in range(MANY + 1, 2 * MANY + 1):
        assert (run.inputs[-1]["step"], run.inputs[-1]["n"]) == ("other", 2 * MANY + 1 - n)
        run.completes("undo", n=n)
    assert run.record.status == "compensated"


def test_events_that_compensate_look_into_parts_one_after_the_other() -> None:
    """Two jobs that read one part at the same time would compensate its instances twice."""
    run = StoredRun(
        item=on("item", mode="each", compensation="undo", compensate_on=("stop", "halt")), undo=on(), bad=on("bad")
    )
    run.completes("a", *["item"] * MANY, "bad")
    for n in range(1, MANY + 1):
        run.completes("item", n=n, result=RESULT)
    loads: list[PartLoad] = []
    read, run._read = run._read, lambda load: loads.append(load)  # type: ignore[method-assign,func-returns-value,assignment]
    for kind in ("stop", "halt"):
        try:
            run.emits(kind)
        except AttributeError:
            continue
    run._read = read  # type: ignore[method-assign]
    assert [load.kind for load in loads] == ["stop"]
    run.decide(lambda d: d.on_loaded(read(loads[0])))
    assert sorted(one["n"] for one in run.inputs if isinstance(one, dict)) == list(range(1, MANY + 1))
    assert run.record.routing == 0


def test_parts_that_cannot_be_read_fail_the_run() -> None:
    for ending, end in (("completes", "flow.failed"), ("fails", "flow.failed")):
        run = fan_out(MANY, compensation="undo")
        run._read = lambda load: LoadedParts(load, problem="damaged")  # type: ignore[method-assign]
        getattr(run, ending)("bad")
        while not run.record.closed:
            run.completes("undo", n=run.record.started_of("undo"))
        assert run.ends[-1][0] == end
        assert run.ends[-1][1]["failed"][-1]["code"] == "unreadable_record"


def make_orders(*, fails: bool) -> list[Any]:
    @flow("orders", emits=["item", "last"])
    async def orders(count: int, ctx: Context) -> None:
        for n in range(count):
            ctx.emit("item", n)
        ctx.emit("last")

    @step(on="item", mode="each", compensation="cancel")
    async def book(n: int, ctx: Context) -> dict[str, Any]:
        return {"booked": n, "text": "x" * 100}

    @step(flow="orders")
    async def cancel(input: Any, ctx: Context) -> None:
        await ctx.state.patch("cancelled", lambda known: (known or 0) + (input["result"]["booked"] == input["input"]))

    @step(on="last", retry=1)
    async def last() -> None:
        if fails:
            raise Permanent("no")

    return [orders, book, cancel, last]


@pytest.mark.parametrize("fails", [False, True])
async def test_on_every_store(app: Any, fails: bool) -> None:
    """The engine's jobs read the parts. Neither they nor the parts are seen in lists."""
    count = 100
    async with app(*make_orders(fails=fails)) as a, a.workers.background():
        run, status = await a.run_to_end("orders", count)
        state = a.state.of_run(run)
        if fails:
            assert status == "compensated"
            assert await state.list() == {"cancelled": count}
        else:
            assert [one["booked"] for one in await a.result(run)] == list(range(count))
            assert await state.list(limit=1) == {}
            assert await state.get([".record", "compensations", "1"]) is not None
        assert not await a.store.stuck_runs()


async def test_a_fork_has_its_own_parts() -> None:
    async with TestApp(handlers=make_orders(fails=True)) as a:
        run = await a.run_flow("orders", 60)
        assert run.status == "compensated"
        failed = next(
            e
            for e in await a.events.read_all(f"nq:flow:{run.id}")
            if e.kind == "step.completed" and (e.meta or {}).get("n") == 60
        )
        new = await a.runs.fork(run.id, failed.id)
        assert (await a.runs.wait(new)).status == "compensated"
        assert await a.state.of_run(new).get("cancelled") == 60


def test_a_record_with_impossible_parts_is_refused() -> None:
    run = fan_out(MANY, compensation="undo")
    known = msgspec.json.decode(encode(run.record))
    for field, value in (
        ("movedResults", {"item": [MANY + 1, 1]}),
        ("movedCompensations", [10**9, 1]),
        ("done", "a b"),
    ):
        with pytest.raises(msgspec.ValidationError):
            check_record(msgspec.json.encode(known | {field: value}))
