"""Replay check: runs a handler on its recorded history, to see whether the present code can continue from there.

Nothing is written or emitted, and no function of `ctx.run` is called: the first call without a record that would do
something ends the replay. Then the calls that were made are compared with the recorded ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ..core.errors import Suspension
from ..core.payload import pack
from ..durable.calls import WaitCall
from ..durable.journal import JournalCall, JournalEntry
from ..durable.session import DurableSession
from ..ports.store import ChildRow
from ..ports.unit import NewEvent, StateWrite, WaitChange
from .attempt import Attempt
from .channel import WorkerChannel
from .outcomes import Failure, Success

ADDED, REMOVED = "call_added", "call_removed"
VALUE_KINDS = ("now", "uuid", "random")  # calls without side effects: a deploy may add and remove them
HELD_RESULT = "result"  # of a declared wait: the handler has returned and does not run again
PATCH = "patch:"


class Difference(NamedTuple):
    """One way in which the present code differs from what was recorded."""

    code: str
    reason: str
    call: str | None = None


class ReplaySession(DurableSession):
    """The durable session of a replay check."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.recorded: dict[str, JournalEntry] = dict(self.journal.entries)
        self.stopped_at: tuple[str, str] | None = None  # key and kind of the call without a record that ended it
        self.waits_at: str | None = None  # the recorded waits that the handler suspended on, as it did before

    def begin(self, call: JournalCall) -> None:
        raise self.stop(call.key, call.kind)

    def stop(self, key: str, kind: str) -> Suspension:
        """Return the exception to raise where a call without a record would do its work."""
        self.stopped_at = self.stopped_at or (key, kind)
        return self._end()

    def suspend(self, waits: Sequence[WaitCall[Any]]) -> Suspension:
        suspension = super().suspend(waits)
        self.waits_at = ", ".join(wait.name for wait in waits) or None
        return suspension

    async def expire(self, _changes: Sequence[WaitChange]) -> None:
        self.waits_at = self.journal.previous
        raise self._end()

    async def flush(self) -> None:
        self.journal.take_writes()

    async def register_wait(self, wait: WaitCall[Any]) -> None:
        """Do nothing: a replay check leaves nothing behind."""

    async def send_events(self, events: Sequence[NewEvent]) -> None:
        """Do nothing: a replay check leaves nothing behind."""

    def _end(self) -> Suspension:
        self.is_suspended = not self.journal.is_concurrent  # its other branches go on
        return Suspension(f"{self.journal.about} has reached the end of its record")


class ReplayChannel(WorkerChannel):
    """A channel that records nothing."""

    __slots__ = ("patches",)

    def __init__(self, *args: Any) -> None:
        self.patches: set[str] = set()  # the recorded patches that the handler made again
        super().__init__(*args)

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
            channel=self,
            public_url=self.work.public_url,
            orders_effects=self.work.handler.runner != "node",
        )

    def log(self, level: str, message: str, fields: Mapping[str, Any]) -> None:
        """Drop the line: it was logged when the handler first came here, or is not due yet."""

    def progress(self, value: Any) -> None:
        pack(value, "progress")

    def partial(self, chunk: Any) -> None:
        """Drop the chunk."""

    def read_memo(self, name: str) -> bytes | None:
        self.patches.add(name)
        return super().read_memo(name)

    async def commit_patch(self, _write: StateWrite, memo: str) -> bool:
        raise self.session.stop(_show_patch(memo), "patch")

    async def list_children(self) -> list[ChildRow]:
        return []

    async def remove_job(self, _id: str) -> bool:
        return False


class ReplayCheck(Attempt):
    """An attempt that leaves nothing behind. It finds how the code differs from the record."""

    _channel: ReplayChannel

    def _open_channel(self) -> ReplayChannel:
        return ReplayChannel(self.work, self._services)

    async def find_differences(self) -> list[Difference]:
        """Run the handler and return what the present code does differently; an empty list if it can continue."""
        result = await self.run()
        session = self._channel.session
        found: list[Difference] = []
        if isinstance(result, Failure):
            found.append(Difference(result.error.code or result.error.name, result.error.error))
        if any(entry.kind == HELD_RESULT for entry in session.recorded.values()):
            return found
        has_reached_end = isinstance(result, Success) or (session.waits_at is not None and not found)
        if session.journal.is_concurrent and session.stopped_at is not None:
            has_reached_end = False  # other branches may go on after the call without a record
        return [*found, *self._compare_calls(has_reached_end), *self._compare_effects(has_reached_end)]

    def _compare_calls(self, has_reached_end: bool) -> list[Difference]:
        session, journal = self._channel.session, self._channel.session.journal
        missing = [
            key
            for key, entry in sorted(session.recorded.items(), key=lambda item: item[1].ord)
            if key not in journal.reached and entry.kind not in VALUE_KINDS
        ]
        if journal.is_concurrent and not has_reached_end:
            return []  # of concurrent calls, any may come first
        passed = missing if has_reached_end else [k for k in missing if session.recorded[k].ord < journal.position]
        found = [Difference(REMOVED, _describe_removed(key, self._place()), key) for key in passed]
        ahead = [key for key in missing if key not in passed]
        if session.stopped_at is not None and ahead:
            call, kind = session.stopped_at
            is_same_kind = session.recorded[ahead[0]].kind == kind
            found.append(Difference(ADDED, _describe_added(call, ahead[0], is_same_kind), call))
        return found

    def _compare_effects(self, has_reached_end: bool) -> list[Difference]:
        """Compare emits, state writes and patches. Their number was recorded each time the handler suspended."""
        channel, session = self._channel, self._channel.session
        recorded = session.journal.recorded_effects
        found: list[Difference] = []
        if has_reached_end:
            emits = [f"emit {n} ({kind!r})" for n, kind in enumerate(recorded.kinds, 1)]
            sets = [f"state write {n}" for n in range(1, recorded.sets + 1)]
            patches = [_show_patch(memo) for memo in self.work.claim.memos if _is_patch(memo, channel.patches)]
            launches = [_show_launch(n, label) for n, (label, _) in enumerate(recorded.launches, 1)]
            removed = (*emits[channel.emit_count :], *launches[channel.launch_count :], *sets[channel.write_count :])
            for call in (*removed, *patches):
                found.append(Difference(REMOVED, _describe_removed(call, self._place()), call))
        if has_reached_end and session.waits_at is not None:
            first = recorded.emits + 1
            emits = [f"emit {n} ({one.kind!r})" for n, one in enumerate(channel.emitted, first)]
            sets = [f"state write {n}" for n in range(recorded.sets + 1, channel.write_count + 1)]
            first = len(recorded.launches) + 1
            launches = [_show_launch(n, one.label) for n, one in enumerate(channel.launched, first)]
            for call in (*emits, *launches, *sets):
                found.append(Difference(ADDED, _describe_added(call, session.waits_at, False), call))
        return found

    def _place(self) -> str:
        """Return where the replay ended, for messages."""
        session = self._channel.session
        if session.waits_at is not None:
            return session.waits_at
        return session.stopped_at[0] if session.stopped_at is not None else "the end of the handler"


def _describe_removed(call: str, place: str) -> str:
    return (
        f"{call} is recorded, and the code reaches {place} without it: if it comes later now, the step fails with "
        "non_determinism or does it twice; keep the call where it was, or let old workers finish the run "
        '(on_change="pin")'
    )


def _describe_added(call: str, before: str, may_be_renamed: bool) -> str:
    hint = f"; if it is {before} under a new name, keep the old name, or it is done twice" if may_be_renamed else ""
    return (
        f"{call} has no record and comes before {before}, which has one: it would be done now, in the past of the "
        f"run{hint}"
    )


def _is_patch(memo: str, made: set[str]) -> bool:
    return memo.startswith(PATCH) and memo not in made


def _show_launch(n: int, label: str) -> str:
    return f"launch {n} ({label})"


def _show_patch(memo: str) -> str:
    return f"the patch of {memo.removeprefix(PATCH)}"
