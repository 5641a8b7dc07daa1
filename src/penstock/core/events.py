"""The event envelope and the names of streams and kinds."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import msgspec

from .clock import iso
from .errors import PenstockError
from .ids import event_id

STREAM_TYPES = ("flow", "trigger", "webhook", "entity", "queue", "global")
# Kinds beginning with these words are written by the engine; user code may not emit them.
RESERVED = ("flow.", "step.", "job.", "trigger.", "schema.", "buffer.", "schedule.", "state.")


class Event(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """One immutable record of a stream. `id` is `<ms>-<seq>`: the cursor everywhere, gapless in its stream."""

    id: str
    ts: str
    kind: str
    subject: str
    flow: str | None = None
    step: str | None = None
    trigger: str | None = None
    correlation_id: str | None = None
    data: Any = None
    meta: dict[str, Any] | None = None

    @property
    def seq(self) -> int:
        return int(self.id.partition("-")[2])


class Body(msgspec.Struct, omit_defaults=True, rename="camel"):
    """What a producer writes of an event; the store adds `id` and `ts`. `data` is JSON kept as it came.

    What the stream's name says already is left out and filled in on reading: the subject, in a run's stream the flow,
    and a correlation id that is the subject. It halves what a run takes on disk.
    """

    kind: str
    subject: str | None = None
    flow: str | None = None
    step: str | None = None
    trigger: str | None = None
    correlation_id: str | None = None
    data: msgspec.Raw | None = None
    meta: dict[str, Any] | None = None


class _Stored(msgspec.Struct, rename="camel"):
    kind: str
    subject: str | None = None
    flow: str | None = None
    step: str | None = None
    trigger: str | None = None
    correlation_id: str | None = None
    data: Any = None
    meta: dict[str, Any] | None = None


_encoder = msgspec.json.Encoder()
_stored = msgspec.json.Decoder(_Stored)
encode_event = _encoder.encode
encode_body: Callable[[Body], bytes] = _encoder.encode


def decode_event(stream: str, seq: int, ms: int, body: bytes) -> Event:
    """The whole record, from the stream it is in, the position a store assigned and the body it kept."""
    return _whole(stream, event_id(ms, seq), ms, _stored.decode(body))


def event_of(stream: str, id: str, body: dict[str, Any]) -> Event:
    """The same from a body that was decoded with what it came in."""
    return _whole(stream, id, int(id.partition("-")[0]), msgspec.convert(body, _Stored))


def _whole(stream: str, id: str, ms: int, s: _Stored) -> Event:
    _, type_, id_ = f"{stream}:".split(":")[:3]
    subject = s.subject or id_ or type_
    flow, corr = s.flow, s.correlation_id
    if type_ == "flow":
        flow = flow or id_
    if type_ in ("flow", "queue"):
        corr = corr or subject
    return Event(id, iso(ms), s.kind, subject, flow, s.step, s.trigger, corr, s.data, s.meta)


class BadStream(PenstockError):
    """A stream name does not read `<namespace>:<type>:<id>`."""

    code = "bad_stream"


class Streams:
    """The stream names of one namespace."""

    def __init__(self, namespace: str = "nq") -> None:
        self.namespace = namespace
        self.global_stream = f"{namespace}:global"
        self._flow = f"{namespace}:flow:"

    def flow(self, run: str) -> str:
        return self._flow + run

    def queue(self, queue: str) -> str:
        return f"{self.namespace}:queue:{queue}"

    def named(self, type_: str, id_: str) -> str:
        return f"{self.namespace}:{type_}:{id_}"

    def check(self, name: str) -> str:
        """The stream name itself, or BadStream with the form that is understood."""
        parts = name.split(":")
        if name == self.global_stream or (
            len(parts) == 3 and parts[0] == self.namespace and parts[1] in STREAM_TYPES and parts[2]
        ):
            return name
        raise BadStream(
            f"{name!r} is not a stream: write {self.namespace}:<type>:<id> with a type of "
            f"{', '.join(STREAM_TYPES[:-1])}, or {self.global_stream}"
        )


class BadEmit(PenstockError):
    """What was emitted is no event."""

    code = "bad_emit"


_KIND = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*")


def check_kind(kind: str) -> str:
    """The kind itself, or BadEmit: it is no kind, or one that only the engine writes."""
    if not isinstance(kind, str) or not _KIND.fullmatch(kind) or len(kind) > 256:
        raise BadEmit(f"{kind!r} is not an event kind: write dotted words such as 'order.paid'")
    if kind.startswith(RESERVED):
        raise BadEmit(f"{kind!r} begins with a word the engine keeps for itself ({', '.join(RESERVED)}): rename it")
    return kind
