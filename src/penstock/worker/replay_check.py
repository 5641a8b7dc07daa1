"""Replay check: runs a handler on its recorded history, to see whether the present code can continue from there.

Nothing is written or emitted, and no function of `ctx.run` is called: the first call that is not recorded ends it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..core.errors import Suspension
from ..core.payload import pack
from ..durable.journal import Journal, JournalCall
from ..durable.session import DurableSession
from ..ports.store import ChildRow
from ..ports.unit import StateWrite, WaitChange
from .attempt import Attempt
from .channel import WorkerChannel


class _ReadOnlyJournal(Journal):
    """A journal that ends the attempt at the first call it has no record of."""

    session: ReplaySession

    def next_call_by_order(self, name: str, kind: str) -> JournalCall:
        call = super().next_call_by_order(name, kind)
        if call.entry is None:
            raise self.session.end()
        return call


class ReplaySession(DurableSession):
    """The durable session of a replay check."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        work, before = self._work, self.journal
        journal = _ReadOnlyJournal(dict(work.claim.memos), before.scope, before.about, lambda: work.handler.code)
        journal.session = self
        self.journal = journal

    def end(self) -> Suspension:
        """Return the exception to raise where the record ends."""
        self.is_suspended = True
        return Suspension(f"{self.journal.about} has reached the end of its record")

    async def flush(self) -> None:
        self.journal.take_writes()

    async def expire(self, _changes: Sequence[WaitChange]) -> None:
        raise self.end()


class ReplayChannel(WorkerChannel):
    """A channel that records nothing."""

    __slots__ = ()

    @property
    def session(self) -> ReplaySession:
        session = super().session
        assert isinstance(session, ReplaySession)
        return session

    def _make_session(self) -> ReplaySession:
        services = self._services
        return ReplaySession(
            self.work,
            clock=services.clock,
            rng=services.rng,
            unit_id=services.new_unit_id,
            submit=self._submit,
            check=self.check,
            public_url=self.work.public_url,
        )

    def log(self, level: str, message: str, fields: Mapping[str, Any]) -> None:
        """Drop the line: it was logged when the handler first came here, or is not due yet."""

    def progress(self, value: Any) -> None:
        pack(value, "progress")

    def partial(self, chunk: Any) -> None:
        """Drop the chunk."""

    async def commit_patch(self, _write: StateWrite, _memo: str) -> bool:
        raise self.session.end()

    async def list_children(self) -> list[ChildRow]:
        return []

    async def remove_job(self, _id: str) -> bool:
        return False


class ReplayCheck(Attempt):
    """An attempt that leaves nothing behind. Its result shows whether the code fits the record."""

    def _open_channel(self) -> ReplayChannel:
        return ReplayChannel(self.work, self._services)
