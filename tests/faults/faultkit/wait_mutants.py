"""Known bugs of waits, put back on purpose; see `mutants`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

import penstock.commit.committer as group_commit
import penstock.durable.call_recorder as call_recorder
import penstock.durable.first as first
import penstock.durable.session as session
import penstock.durable.trigger_waits as triggers
import penstock.durable.waits as waits
import penstock.flows.delivery as deliveries
from penstock.core.payload import unpack
from penstock.durable.wait_records import WaitResult
from penstock.ports.unit import ClaimRequest, CommitReply, Committed, NewWait, SettleWait, Suspended, Unit
from penstock.stores.sqlite import claim as claiming
from penstock.stores.sqlite import commit as committing

from .patches import replace

Wrap = Callable[[Any], Any]


def wrap_store(wrap: Wrap) -> None:
    """Wrap the store of every committer."""
    original = group_commit.Committer.__init__

    def init(self: Any, store: Any, *rest: Any, **more: Any) -> None:
        original(self, wrap(store), *rest, **more)

    replace(group_commit.Committer, "__init__", init)


class RewritingStore:
    """Changes units on their way to the store; `later` returns what follows in a second commit."""

    def __init__(self, inner: Any, change: Callable[[Unit], Unit], later: Callable[[Unit], Unit | None]) -> None:
        self._inner = inner
        self._change = change
        self._later = later

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def commit(self, units: Sequence[Unit], request: ClaimRequest | None = None) -> CommitReply:
        reply = await self._inner.commit([self._change(unit) for unit in units], request)
        rest = [
            later
            for unit, receipt in zip(units, reply.receipts, strict=True)
            if isinstance(receipt, Committed) and not receipt.repeated and (later := self._later(unit)) is not None
        ]
        if rest:
            await asyncio.sleep(0.3)  # time to be killed in
            await self._inner.commit(rest)
        return reply  # type: ignore[no-any-return]


def suspend_without_trigger_check() -> None:
    """Suspend a step even if its trigger was fired meanwhile."""

    def change(unit: Unit) -> Unit:
        if not isinstance(unit.outcome, Suspended):
            return unit
        triggers = [wait for wait in unit.waits if isinstance(wait, NewWait) and wait.kind == "trigger"]
        return msgspec.structs.replace(unit, waits=[wait for wait in unit.waits if wait not in triggers])

    wrap_store(lambda store: RewritingStore(store, change, lambda _: None))


def look_back_missing() -> None:
    async def look_back(self: Any, payload: dict[str, str]) -> None: ...

    replace(deliveries.DeliveryEngine, "look_back", look_back)


def consumed_events_ignored() -> None:
    original = deliveries.DeliveryEngine._matches

    def fits(self: Any, body: Any, event: Any, stream: str) -> bool:
        body.taken = []
        return original(self, body, event, stream)

    replace(deliveries.DeliveryEngine, "_matches", fits)


def settle_unchecked() -> None:
    original = committing.UnitWriter._check_rest

    def check(self: Any, unit: Unit) -> Any:
        new = [wait for wait in unit.waits if not isinstance(wait, SettleWait)]
        return original(self, msgspec.structs.replace(unit, waits=new))

    replace(committing.UnitWriter, "_check_rest", check)


def timeout_not_recorded() -> None:
    async def expire(self: Any, changes: Sequence[Any]) -> None:
        self.journal.writes.waits += changes

    replace(session.DurableSession, "expire", expire)


def wake_in_second_commit() -> None:
    wrap_store(
        lambda store: RewritingStore(
            store,
            lambda unit: msgspec.structs.replace(unit, wakes=[]),
            lambda unit: Unit(f"{unit.id}-wakes", wakes=unit.wakes) if unit.wakes else None,
        )
    )


def timers_fire_early() -> None:
    """Claim jobs that are due within the next ten minutes, with that time as the present."""
    original = claiming.Claimer.__init__

    def init(self: Any, cursor: Any, now: int, *rest: Any) -> None:
        original(self, cursor, now + 600_000, *rest)

    replace(claiming.Claimer, "__init__", init)


def overdue_timers_lost() -> None:
    """Suspend jobs for good that came due while no worker ran."""
    original = claiming.Claimer.claim

    def claim(self: Any, request: Any) -> Any:
        self._cursor.execute("UPDATE jobs SET state = 3 WHERE state = 1 AND due <= ?", (self._now - 1_800_000,))
        return original(self, request)

    replace(claiming.Claimer, "claim", claim)


def cancelled_waits_expire() -> None:
    """Let a cancelled wait expire at its own time, after `ctx.first` was decided."""

    async def expire_wait(session: Any, record_result: Any, wait: NewWait, _started: int) -> None:
        record_result(WaitResult(session.now_ms, timeout=True))
        await session.expire([SettleWait(wait.id, "expired")])

    async def await_first(self: Any, calls: Any, call: Any) -> tuple[str, Any]:
        await self.start_calls(list(calls.values()))
        won = (
            unpack(bytes(call.entry.value))
            if call.entry is not None
            else await first.FirstCall(self, calls, call).find_winner()
        )
        return won, calls[won].result()

    replace(waits, "expire_wait", expire_wait)
    replace(triggers, "expire_wait", expire_wait)
    replace(call_recorder.CallRecorder, "_await_first", await_first)


def winner_used_before_it_is_recorded() -> None:
    """Continue the handler with the winning function, and write its value with the next commit."""
    register_waits, run_functions = call_recorder.CallRecorder.register_waits, first.FirstCall._run_functions

    async def nothing() -> None:
        pass

    async def registered(self: Any, waits: Any) -> None:
        await register_waits(self, waits)
        self.flush = nothing

    async def won(self: Any) -> str:
        winner = await run_functions(self)
        del self._recorder.flush
        return winner

    replace(call_recorder.CallRecorder, "register_waits", registered)
    replace(first.FirstCall, "_run_functions", won)
