"""`app.alerts`: rules that any worker evaluates, what fires, silences and history."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from ..commit.committer import CommitRequest
from ..core.argument_checks import check_arguments, check_count
from ..core.clock import to_iso
from ..core.durations import Duration, to_ms
from ..core.errors import BadArgument, UnknownSilence
from ..core.events import Event, EventBody
from ..core.ids import uuid7
from ..core.payload import pack
from ..core.stored import read_stored
from ..core.text import shorten
from ..ports.store import StateRow
from ..ports.unit import ALERT, DELIVERIES, Committed, NewEvent, NewJob, StateWrite, Unit
from ..worker.outcomes import pack_record
from .alert_checks import Condition, find_conditions
from .alert_rules import AlertRule, parse_rules

if TYPE_CHECKING:
    from .app import App

ACTIVE, SILENCES, TURN = "alerts/active/", "alerts/silences/", "alerts/turn"
FIRED, RESOLVED = "audit.alert.fired", "audit.alert.resolved"
PAGE = 200


class AlertView(msgspec.Struct, frozen=True, rename="camel"):
    """An alert that fires."""

    id: str
    rule: str
    subject: str  # the queue or the schedule
    summary: str
    since: str
    silenced: bool = False


class Silence(msgspec.Struct, frozen=True, rename="camel"):
    """Alerts that are recorded and not sent."""

    id: str
    until: str
    rule: str | None = None  # a rule or its kind; None for all
    subject: str | None = None
    reason: str = ""

    def covers(self, rule: str, subject: str) -> bool:
        """Return whether it silences an alert."""
        is_rule = self.rule is None or rule == self.rule or rule.partition(" ")[0] == self.rule
        return is_rule and self.subject in (None, subject)


class AlertChange(msgspec.Struct, frozen=True, rename="camel"):
    """An alert that fired or was resolved."""

    id: str  # of the event: the cursor of the history
    at: str
    change: str  # fired or resolved
    alert: str
    rule: str
    subject: str
    summary: str
    silenced: bool = False


class _Active(msgspec.Struct, omit_defaults=True):
    rule: str
    subject: str
    summary: str
    since: int
    sent: bool = False  # whether its firing was sent: only then its end is


class _Turn(msgspec.Struct, omit_defaults=True):
    """Which interval was evaluated last, and since when error groups count as new."""

    slot: int
    since: int


_decode_active, _decode_turn = msgspec.json.Decoder(_Active).decode, msgspec.json.Decoder(_Turn).decode
_decode_silence = msgspec.json.Decoder(Silence).decode
_encode = msgspec.json.Encoder().encode


@check_arguments
class Alerts:
    """Alerts without another system: the settings `alerts`, `alert_interval` and `alert_webhook` turn them on."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._runtime = app._runtime
        self._store = app.store
        self._clock = app.clock
        self._rules = parse_rules(app.settings.alerts)

    async def rules(self) -> Sequence[AlertRule]:
        """Return the rules of the setting `alerts`."""
        return list(self._rules)

    async def list(self) -> Sequence[AlertView]:
        """Return the alerts that fire, oldest first, as of the last evaluation."""
        silences = await self.silences()
        found = [(row.key.removeprefix(ACTIVE), _read_active(row)) for row in await self._rows(ACTIVE)]
        found.sort(key=lambda item: (item[1].since, item[0]))
        return [
            AlertView(id, one.rule, one.subject, one.summary, to_iso(one.since), _is_silenced(one, silences))
            for id, one in found
        ]

    async def check(self) -> Sequence[AlertView]:
        """Evaluate the rules now, record and send what has changed, and return the alerts that fire.

        Workers do so once in every `alert_interval`, whatever their number.
        """
        await self._evaluate(await self._read_turn())
        return await self.list()

    async def history(self, *, before: str | None = None, limit: int = 50) -> Sequence[AlertChange]:
        """Return when alerts fired and were resolved, newest first.

        Args:
            before: Id of the last change of the page before.
            limit: Maximum number of changes.
        """
        check_count(limit)
        events = await self._store.read(self._stream, before=before, limit=limit, backward=True)
        return [change for event in events if (change := _read_change(event)) is not None]

    async def silence(
        self, rule: str | None = None, *, subject: str | None = None, duration: Duration = "1h", reason: str = ""
    ) -> Silence:
        """Silence alerts for a while: they are recorded and not sent. Those that still fire afterwards are sent then.

        Args:
            rule: A rule, or its kind such as "oldest_age". Default: all rules.
            subject: A queue or a schedule. Default: all of them.
            duration: For how long.
            reason: Why; shown with the silence.
        """
        ms, now = to_ms(duration), self._clock.now_ms()
        if ms <= 0:
            raise BadArgument(f"duration must be more than 0, got {shorten(duration)}")
        silence = Silence(uuid7(now), to_iso(now + ms), rule, subject, reason)
        await self._write([StateWrite(SILENCES + silence.id, _encode(silence), None, now + ms)])
        return silence

    async def silences(self) -> Sequence[Silence]:
        """Return the silences that hold now."""
        hint = "remove it: `penstock alerts unsilence ID`"
        return [read_stored(_decode_silence, row.value, f"{row.key}", hint) for row in await self._rows(SILENCES)]

    async def unsilence(self, id: str) -> None:
        """End a silence. Raise UnknownSilence if there is none.

        Args:
            id: Id of the silence.
        """
        if await self._store.state(SILENCES + id) is None:
            raise UnknownSilence(f"no silence with id {shorten(id)}; run `penstock alerts silences` to see them")
        await self._write([StateWrite(SILENCES + id, None)])

    async def test(self) -> None:
        """Send a notification to the webhook, to see that it arrives. A worker sends it."""
        if not self._app.settings.alert_webhook:
            raise BadArgument("there is no webhook to test; set PENSTOCK_ALERT_WEBHOOK to its address")
        await self._commit(Unit(self._runtime.new_unit_id(), jobs=[self._job("This is a test of Penstock's alerts.")]))

    # For the worker

    async def _take_turn(self, slot: int) -> bool:
        """Evaluate the rules unless another worker has done so in this interval. Return whether this one did."""
        row = await self._store.state(TURN)
        turn = _read_turn(row)
        if turn is not None and turn.slot >= slot:
            return False
        turn = _Turn(slot, turn.since if turn is not None else self._clock.now_ms())
        mine = StateWrite(TURN, _encode(turn), row.version if row is not None else 0)
        if not await self._write([mine]):
            return False  # another worker was faster
        await self._evaluate(turn)
        return True

    # Evaluation

    async def _read_turn(self) -> _Turn:
        found = _read_turn(await self._store.state(TURN))
        if found is None:
            found = _Turn(0, self._clock.now_ms())
            await self._write([StateWrite(TURN, _encode(found), 0)])
        return found

    async def _evaluate(self, turn: _Turn) -> None:
        """Compare what holds now with what is recorded, and commit each change with its notification."""
        conditions = {one.id: one for one in await find_conditions(self._app, self._rules, turn.since)}
        rows = {row.key.removeprefix(ACTIVE): row for row in await self._rows(ACTIVE)}
        silences = await self.silences()
        for id, condition in conditions.items():
            await self._record_firing(id, condition, rows.get(id), silences)
        for id, row in rows.items():
            if id not in conditions:
                await self._record_end(id, row, silences)

    async def _record_firing(
        self, id: str, condition: Condition, row: StateRow | None, silences: Sequence[Silence]
    ) -> None:
        was = _read_active(row) if row is not None else None
        active = _Active(condition.rule, condition.subject, condition.summary, self._clock.now_ms())
        if was is not None:
            active.since, active.sent = was.since, was.sent
        unit = Unit(self._runtime.new_unit_id())
        is_silenced = _is_silenced(active, silences)
        if was is None:
            unit.events = [self._event(FIRED, id, active, is_silenced)]
        if not active.sent and not is_silenced:
            unit.jobs, active.sent = [self._job(f":rotating_light: {active.summary} ({active.rule})")], True
        if active != was:
            unit.state = [StateWrite(ACTIVE + id, _encode(active), row.version if row is not None else 0)]
            await self._commit(unit)

    async def _record_end(self, id: str, row: StateRow, silences: Sequence[Silence]) -> None:
        was = _read_active(row)
        is_silenced = _is_silenced(was, silences)
        unit = Unit(self._runtime.new_unit_id(), events=[self._event(RESOLVED, id, was, is_silenced)])
        if was.sent and not is_silenced:
            unit.jobs = [self._job(f":white_check_mark: resolved: {was.summary} ({was.rule})")]
        unit.state = [StateWrite(ACTIVE + id, None, row.version)]
        await self._commit(unit)

    def _job(self, text: str) -> NewJob:
        return NewJob(f"alert.{self._runtime.new_unit_id()}", DELIVERIES, ALERT, pack_record({"text": text}))

    def _event(self, kind: str, id: str, active: _Active, is_silenced: bool) -> NewEvent:
        data: dict[str, Any] = {
            "alert": id,
            "rule": active.rule,
            "subject": active.subject,
            "summary": active.summary,
            "silenced": is_silenced,
        }
        body = EventBody(kind, active.subject, data=msgspec.Raw(pack(data)))
        return NewEvent(self._stream, self._runtime.bodies.encode(body))

    @property
    def _stream(self) -> str:
        return self._runtime.bodies.stream_name("audit", "alerts")

    async def _rows(self, prefix: str) -> Sequence[StateRow]:
        found: Sequence[StateRow] = ()
        after: str | None = None
        while rows := await self._store.states(prefix, after=after, limit=PAGE):
            after = rows[-1].key
            found = [*found, *rows]
        return found

    async def _write(self, writes: Sequence[StateWrite]) -> bool:
        return await self._commit(Unit(self._runtime.new_unit_id(), state=[*writes]))

    async def _commit(self, unit: Unit) -> bool:
        """Commit a unit. Return False if another evaluation came first."""
        return isinstance(await self._runtime.committer.submit(CommitRequest(lambda _v, _r: unit)), Committed)


def _is_silenced(active: _Active, silences: Sequence[Silence]) -> bool:
    return any(silence.covers(active.rule, active.subject) for silence in silences)


def _read_active(row: StateRow) -> _Active:
    return read_stored(_decode_active, row.value, f"{row.key}", "delete it: `penstock state delete`")


def _read_turn(row: StateRow | None) -> _Turn | None:
    return read_stored(_decode_turn, row.value, f"{row.key}", "delete it") if row is not None else None


def _read_change(event: Event) -> AlertChange | None:
    if event.kind not in (FIRED, RESOLVED):
        return None
    data = event.data
    change = event.kind.rpartition(".")[2]
    return AlertChange(
        event.id, event.ts, change, data["alert"], data["rule"], data["subject"], data["summary"], data["silenced"]
    )
