"""Sinks: where the units of commands go, and what a sink does with a build that returns no unit."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from penstock.commit.command_sink import BridgeSink, DirectSink, TransactionSink
from penstock.commit.committer import CommitRequest
from penstock.commit.preview import PLAN, CommandPlan
from penstock.ports.unit import Committed, Conflict, Receipt, Refused, RunWrite, Unit

ENDED = Conflict(3, b"ended")


async def test_a_transaction_keeps_units_and_answers_for_the_rest() -> None:
    sink = TransactionSink()
    plain, run = Unit("plain"), Unit("run", run=RunWrite("r-1", 0, b"{}", "order", "running"))
    assert await sink.submit(CommitRequest(lambda _v, _r: plain)) == Committed(repeated=True)
    assert await sink.submit(CommitRequest(lambda _v, _r: run)) == Committed()
    assert await sink.submit(CommitRequest(lambda _v, _r: ENDED)) is ENDED
    assert sink.units == [plain, run]


async def test_a_bridge_builds_again_after_a_conflict() -> None:
    seen: list[tuple[int, bytes | None]] = []
    answers: list[Receipt] = [Conflict(2, b"two"), Committed()]

    async def write(units: Sequence[Unit]) -> list[Receipt]:
        assert len(units) == 1
        return [answers.pop(0)]

    def build(version: int, record: bytes | None) -> Unit:
        seen.append((version, record))
        return Unit("one")

    assert await BridgeSink(write).submit(CommitRequest(build, run="r-1", version=1, record=b"one")) == Committed()
    assert seen == [(1, b"one"), (2, b"two")]


async def test_a_bridge_returns_what_is_no_conflict() -> None:
    async def write(_units: Sequence[Unit]) -> list[Receipt]:
        return [Refused("taken", "job-1")]

    sink = BridgeSink(write)
    assert await sink.submit(CommitRequest(lambda _v, _r: Unit("one"))) == Refused("taken", "job-1")
    assert await sink.submit(CommitRequest(lambda _v, _r: ENDED)) is ENDED


@pytest.mark.parametrize(("receipt", "expected"), [(Committed(), 4), (Refused("taken", "job-1"), 3)])
async def test_a_guarded_command_expects_the_next_version_only_after_a_commit(receipt: Receipt, expected: int) -> None:
    class Answers:
        async def submit(self, request: CommitRequest) -> Receipt:
            assert isinstance(request.build(3, b"{}"), Unit)
            return receipt

    plan = CommandPlan(None, {"r-1": 3}, False)  # type: ignore[arg-type]
    token = PLAN.set(plan)
    try:
        unit = Unit("one", run=RunWrite("r-1", 3, b"{}", "order", "running"))
        assert await DirectSink(Answers()).submit(CommitRequest(lambda _v, _r: unit, run="r-1")) is receipt  # type: ignore[arg-type]
    finally:
        PLAN.reset(token)
    assert plan._expected == {"r-1": expected}
