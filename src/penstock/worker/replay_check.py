"""Rehearsing a handler: it is run on what is recorded of it, to see whether the present code can go on from there.

Nothing is written, emitted or told, and no function of `ctx.run` is called: the first call that is not recorded ends
it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..core.errors import Suspension
from ..durable.journal import Journal, JournalCall
from ..durable.session import DurableSession
from ..ports.unit import StateWrite, WaitChange
from .attempt import Attempt


class _Record(Journal):
    """A journal that is only read."""

    session: RehearsedSession

    def call_anywhere(self, name: str, kind: str) -> JournalCall:
        call = super().call_anywhere(name, kind)
        if call.entry is None:
            raise self.session.end()
        return call


class RehearsedSession(DurableSession):
    """The durable side of a rehearsal."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        work, before = self._work, self.journal
        record = _Record(dict(work.claim.memos), before.scope, before.about, lambda: work.handler.code)
        record.session = self
        self.journal = record

    def end(self) -> Suspension:
        """What to raise where the record ends."""
        self.suspended = True
        return Suspension(f"{self.journal.about} has come to the end of what is recorded")

    async def record(self) -> None:
        self.journal.take()

    async def expire(self, _gate: Sequence[WaitChange]) -> None:
        raise self.end()


class Rehearsal(Attempt):
    """An attempt that leaves nothing behind. How it ends says what the code makes of the record."""

    @property
    def session(self) -> RehearsedSession:
        if not isinstance(self._session, RehearsedSession):
            self._session = RehearsedSession(
                self.work,
                clock=self._clock,
                rng=self._rng,
                unit_id=self._unit_id,
                submit=self._submit,
                check=self.check,
                public_url=self.work.public_url,
            )
        return self._session

    def log(self, level: str, message: str, fields: Mapping[str, Any]) -> None:
        """It was said when the handler first came here, or is not said yet."""

    def _frame(self, kind: str, data: Any, progress: bytes | None = None, line: str | None = None) -> None:
        """Likewise."""

    async def apply(self, _write: StateWrite, _name: str) -> bool:
        raise self.session.end()
