"""The live output of one attempt: log lines, progress and partial results, sent in batches while the handler runs."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from ..commit.committer import CommitRequest
from ..context.live_output import LiveOutput, OutputBatch
from ..core.errors import PayloadError
from ..core.events import EventBody, log_topic
from ..core.payload import pack, unpack
from ..core.trace_context import split_trace
from ..ports.unit import Fenced, NewEvent, Unit
from ..telemetry.logging import HANDLER
from .outcomes import Work

if TYPE_CHECKING:  # the channel imports this module
    from .channel import AttemptServices

log = logging.getLogger(HANDLER)
MAX_LOG_TEXT = 8_000
MAX_FIELDS = 20
MAX_FIELD_TEXT = 500
_LOG_START = b'{"kind":"log",'


class LiveLog:
    """Turns what a handler logs and reports into events. `on_fenced` is called when the claim is lost."""

    def __init__(self, work: Work, services: AttemptServices, on_fenced: Callable[[], None]) -> None:
        self._work = work
        self._services = services
        self._on_fenced = on_fenced
        self._family = work.family
        self._buffer = LiveOutput(self._send, lambda n: self._body("buffer.drop", {"dropped": n}), services.loop)

    def log(self, level: str, message: str, fields: Mapping[str, Any]) -> None:
        """Add a log line, and pass it to Python's logging."""
        message, fields = make_loggable(message, fields)
        data: dict[str, Any] = {"level": "warn" if level == "warning" else level, "msg": message}
        if fields:
            data["fields"] = fields
        line = self._line(data) if self._work.run_id is None else None
        self._buffer.add(self._body("log", data), None, line)
        number = getattr(logging, level.upper())
        if log.isEnabledFor(number):
            bodies = self._work.bodies
            extra = {**log_fields(self._work), "redacted": True}
            if fields:
                extra["fields"] = bodies.redact_value(unpack(pack(fields)))
            log.log(number, "%s", bodies.redact_text(message), extra=extra)

    def progress(self, value: Any, packed: bytes) -> None:
        self._buffer.add(self._body(f"{self._family}.progress", {"progress": value}), packed)

    def partial(self, chunk: Any, index: int) -> None:
        """Add a chunk of output. Its index tells readers which chunk it replaces if the handler ran again."""
        self._buffer.add(self._body(f"{self._family}.partial", {"chunk": chunk}, index=index))

    async def close(self) -> OutputBatch:
        """Return what is not sent yet: it goes with the attempt's last commit."""
        return await self._buffer.drain()

    def _line(self, data: dict[str, Any]) -> str:
        """Return a log line as other programs show it, its secrets hidden."""
        bodies = self._work.bodies
        line = f"[{data['level']}] {bodies.redact_text(data['msg'])}"
        fields = data.get("fields")
        return f"{line} {pack(bodies.redact_value(unpack(pack(fields)))).decode()}" if fields else line

    def _body(self, kind: str, data: Any, **more: Any) -> bytes:
        work = self._work
        meta: dict[str, Any] = {"attempt": work.claim.attempt, **more}
        if work.n > 1:
            meta["n"] = work.n
        raw = msgspec.Raw(pack(data, kind))
        return work.bodies.encode(
            EventBody(kind, work.subject, None, work.step, None, work.shown_correlation, raw, meta)
        )

    async def _send(self, batch: OutputBatch) -> None:
        work, services = self._work, self._services
        events = live_events(work, batch.events)
        unit = Unit(services.new_unit_id(), claim=work.claim, events=events, progress=batch.progress, logs=batch.logs)
        receipt = await services.committer.submit(CommitRequest(lambda _v, _r: unit, outlasts_outage=True))
        if isinstance(receipt, Fenced):
            self._on_fenced()


def live_events(work: Work, bodies: Sequence[bytes]) -> list[NewEvent]:
    """Return live output as events of its stream. Lines of a plain job are indexed: many jobs share their stream."""
    if work.run_id is not None:
        return [NewEvent(work.stream, body) for body in bodies]
    topic = log_topic(work.claim.job)
    return [NewEvent(work.stream, body, topic if body.startswith(_LOG_START) else None) for body in bodies]


def log_fields(work: Work) -> dict[str, Any]:
    """Return which attempt a log line belongs to."""
    claim = work.claim
    fields = {
        "run": work.run_id,
        "flow": work.flow,
        "step": work.step,
        "job": claim.job,
        "attempt": claim.attempt,
        "queue": claim.queue,
    }
    if work.trace is not None:
        fields["trace_id"], fields["span_id"] = split_trace(work.trace)
    return fields


def make_loggable(message: str, fields: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    """Cut long texts, and show values without a JSON form as text: a log line must never fail the step."""
    text = message.encode("utf-8", "replace").decode()
    if len(text) > MAX_LOG_TEXT:
        text = f"{text[:MAX_LOG_TEXT]}… ({len(text):,} characters)"
    try:
        pack(fields, "log fields", MAX_LOG_TEXT)
    except PayloadError:
        fields = {str(key): repr(value)[:MAX_FIELD_TEXT] for key, value in list(fields.items())[:MAX_FIELDS]}
    return text, fields
