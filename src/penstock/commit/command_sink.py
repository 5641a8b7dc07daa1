"""Sinks for commands: where the units that start runs, emit events and enqueue jobs are written.

A `DirectSink` writes to the store, or previews what it would write. A `TransactionSink` collects units for a
transaction of the caller. A `BridgeSink` writes inside a transaction that a bridge has open.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Protocol

from ..ports.unit import Committed, Conflict, Receipt, Unit
from .committer import CommitRequest, Committer
from .preview import PLAN, CommandPlan


class CommandSink(Protocol):
    """Takes what is commanded and answers with a receipt."""

    @property
    def is_deferred(self) -> bool:
        """True when units take effect later. A command must then not decide on a run's present record."""
        ...

    async def submit(self, request: CommitRequest) -> Receipt:
        """Build the request's unit, write it, and return the receipt."""
        ...


class DirectSink:
    """Writes to the store. A call with `dry_run=` or `version=` has a plan, which previews or guards every unit."""

    is_deferred = False

    def __init__(self, committer: Committer) -> None:
        self._committer = committer

    def submit(self, request: CommitRequest) -> Coroutine[Any, Any, Receipt]:
        """Commit the request, or collect its unit in a dry run."""
        plan = PLAN.get()
        return self._committer.submit(request) if plan is None else self._submit_planned(request, plan)

    async def _submit_planned(self, request: CommitRequest, plan: CommandPlan) -> Receipt:
        if request.run is not None and plan.is_guarded(request):
            request.build = plan.guard(request.run, request.build)
        if plan.is_dry_run:
            return await plan.collect(request)
        receipt = await self._committer.submit(request)
        if isinstance(receipt, Committed):
            plan.committed(request)
        return receipt


class TransactionSink:
    """Collects units until the caller's transaction takes them (`tx=`).

    It never reads the store. A unit that the store refuses later is one whose effect exists already: the run was
    started, or the key was used.
    """

    is_deferred = True

    def __init__(self) -> None:
        self.units: list[Unit] = []

    async def submit(self, request: CommitRequest) -> Receipt:
        """Keep the unit. The receipt of an event is `repeated`, because its position in the stream is not known yet."""
        built = request.build(request.version, request.record)
        if not isinstance(built, Unit):
            return built
        self.units.append(built)
        return Committed(repeated=built.run is None)


class BridgeSink:
    """Writes each unit at once, inside a transaction of a bridge."""

    is_deferred = False

    def __init__(self, write: Callable[[Sequence[Unit]], Awaitable[list[Receipt]]]) -> None:
        self._write = write

    async def submit(self, request: CommitRequest) -> Receipt:
        """Write the unit. After a conflict, build it again from the run as it is now."""
        version, record = request.version, request.record
        while True:
            built = request.build(version, record)
            if not isinstance(built, Unit):
                return built
            (receipt,) = await self._write([built])
            if not isinstance(receipt, Conflict):
                return receipt
            version, record = receipt.version, receipt.record
