"""Known bugs of waits, put back on purpose; see mutants."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

import penstock.commit.committer as group_commit
import penstock.durable.call_recorder as call_recorder
import penstock.durable.first as first
import penstock.durable.session as session
import penstock.durable.triggers as triggers
import penstock.durable.waits as waits
import penstock.flows.delivery as deliveries
from penstock.core.payload import unpack
from penstock.durable.wait_records import WaitResult
from penstock.ports.unit import ClaimRequest, CommitReply, Committed, NewWait, SettleWait, Suspended, Unit
from penstock.stores.sqlite import claim as claiming
from penstock.stores.sqlite import commit as committing

Wrap = Callable[[Any], Any]


def wrap_store(wrap: Wrap) -> None:
    """Every commit goes through a store of the mutant's own."""
    original = group_commit.Committer.__init__

    def init(self: Any, store: Any) -> None:
        original(self, wrap(store))

    group_commit.Committer.__init__ = init  # type: ignore[method-assign]


class _Rewritten:
    """Changes units on their way to the store; what `later` takes out of them follows in a second commit."""

    def __init__(self, inner: Any, change: Callable[[Unit], Unit], later: Callable[[Unit], Unit | None]) -> None:
        self._inner = inner
        self._change = change
        self._later = later

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def commit(self, units: Sequence[Unit], ask: ClaimRequest | None = None) -> CommitReply:
        reply = await self._inner.commit([self._change(unit) for unit in units], ask)
        rest = [
            later
            for unit, receipt in zip(units, reply.receipts, strict=True)
            if isinstance(receipt, Committed) and not receipt.repeated and (later := self._later(unit)) is not None
        ]
        if rest:
            await asyncio.sleep(0.3)  # room to be killed in
            await self._inner.commit(rest)
        return reply  # type: ignore[no-any-return]


def gates_unnamed() -> None:
    """A step goes to sleep whether or not one of its gates was opened meanwhile."""

    def change(unit: Unit) -> Unit:
        if not isinstance(unit.outcome, Suspended):
            return unit
        known = [wait for wait in unit.waits if isinstance(wait, NewWait) and wait.kind == "trigger"]
        return msgspec.structs.replace(unit, waits=[wait for wait in unit.waits if wait not in known])

    wrap_store(lambda store: _Rewritten(store, change, lambda _: None))


def look_back_left_out() -> None:
    async def look_back(self: Any, payload: dict[str, str]) -> None: ...

    assert hasattr(deliveries.Deliveries, "look_back")
    deliveries.Deliveries.look_back = look_back  # type: ignore[method-assign]


def taken_ignored() -> None:
    original = deliveries.Deliveries._fits

    def fits(self: Any, body: Any, event: Any, stream: str) -> bool:
        body.taken = []
        return original(self, body, event, stream)

    deliveries.Deliveries._fits = fits  # type: ignore[method-assign]


def close_unchecked() -> None:
    original = committing.UnitWriter._check_rest

    def check(self: Any, unit: Unit) -> Any:
        opened = [wait for wait in unit.waits if not isinstance(wait, SettleWait)]
        return original(self, msgspec.structs.replace(unit, waits=opened))

    committing.UnitWriter._check_rest = check  # type: ignore[method-assign]


def timeout_unrecorded() -> None:
    async def expire(self: Any, changes: Sequence[Any]) -> None:
        self.journal.writes.waits += changes

    assert hasattr(session.DurableSession, "expire")
    session.DurableSession.expire = expire  # type: ignore[method-assign]


def wake_afterwards() -> None:
    wrap_store(
        lambda store: _Rewritten(
            store,
            lambda unit: msgspec.structs.replace(unit, wakes=[]),
            lambda unit: Unit(f"{unit.id}-wakes", wakes=unit.wakes) if unit.wakes else None,
        )
    )


def woken_before_time() -> None:
    """A claim takes what is due within the next ten minutes, and a gate believes it."""
    original = claiming.Claimer.__init__

    def init(self: Any, cursor: Any, now: int, *rest: Any) -> None:
        original(self, cursor, now + 600_000, *rest)

    claiming.Claimer.__init__ = init  # type: ignore[method-assign]


def timers_forgotten() -> None:
    """What is due while nobody works is thought to have been done."""
    original = claiming.Claimer.claim

    def claim(self: Any, ask: Any) -> Any:
        self._cursor.execute("UPDATE jobs SET state = 3 WHERE state = 1 AND due <= ?", (self._now - 1_800_000,))
        return original(self, ask)

    claiming.Claimer.claim = claim  # type: ignore[method-assign]


def losers_expire_later() -> None:
    """Once `ctx.first` is decided, the cancelled wait still expires when its own time comes."""
    assert hasattr(waits, "expire_wait")

    async def expire_wait(session: Any, record_result: Any, wait: NewWait, _started: int) -> None:
        record_result(WaitResult(session.now_ms, timeout=True))
        await session.expire([SettleWait(wait.id, "expired")])

    async def await_first(self: Any, calls: Any, call: Any) -> tuple[str, Any]:
        with self.exclusive("ctx.first"):
            await self.start_calls(list(calls.values()))
            won = (
                unpack(bytes(call.entry.value))
                if call.entry is not None
                else await first.FirstCall(self, calls, call).find_winner()
            )
            return won, calls[won].result()

    waits.expire_wait = triggers.expire_wait = expire_wait  # type: ignore[attr-defined]
    call_recorder.CallRecorder.await_first = await_first  # type: ignore[method-assign]


def winner_used_before_it_is_recorded() -> None:
    """The handler continues with the function that won, and its value is written with the next commit."""
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

    call_recorder.CallRecorder.register_waits = registered  # type: ignore[method-assign]
    first.FirstCall._run_functions = won  # type: ignore[method-assign]
