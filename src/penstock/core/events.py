"""The event envelope, the encoding of event bodies, stream names and event kinds."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any

import msgspec

from .clock import to_iso
from .errors import PenstockError
from .event_shapes import check_shape
from .ids import event_id
from .payload import DECODE_ERRORS
from .redaction import Redactor
from .text import shorten

MAX_STREAM_CHARS = 500
STREAM_TYPES = ("flow", "trigger", "webhook", "entity", "queue", "audit", "global")
UNREADABLE = "unreadable"  # the kind of an event that is stored but cannot be read
# Only the engine writes kinds with these prefixes; user code may not emit them.
RESERVED_PREFIXES = (
    "flow.", "step.", "call.", "job.", "trigger.", "schema.", "buffer.", "schedule.", "state.", "audit.",
    "webhook.", "node.", "dag.", "entity.",
)  # fmt: skip


class Event(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """One immutable record of a stream. `id` is `<ms>-<seq>`: the cursor everywhere, gapless in its stream.

    An event that is stored but cannot be read has the kind `unreadable`, and `error` and `raw` in its data.
    """

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

    @property
    def is_unreadable(self) -> bool:
        """Whether the stored event cannot be read: another program wrote or changed it."""
        return self.kind == UNREADABLE


class EventBody(msgspec.Struct, omit_defaults=True, rename="camel"):
    """The part of an event that its producer writes; the store adds `id` and `ts`. `data` is raw JSON.

    Fields that follow from the stream's name are left out and filled in on reading: the subject, the flow in a run's
    stream, and a correlation id equal to the subject. This halves the size of a run on disk.
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


MAX_RAW_CHARS = 200  # of what is stored, shown for an event that cannot be read
MAX_POSITION = 10**18  # of milliseconds and of a sequence: what fits in an event id
_encoder = msgspec.json.Encoder()
_stored = msgspec.json.Decoder(_Stored)
encode_event = _encoder.encode
encode_body: Callable[[EventBody], bytes] = _encoder.encode


def decode_event(stream: str, seq: int, ms: int, body: bytes) -> Event:
    """Build an event from its stream, the position the store assigned and the stored body.

    Never raise: a body that cannot be read becomes an event of the kind `unreadable`, so that readers continue."""
    try:
        stored = _stored.decode(body)
        check_shape(stored.kind, stored.data, stored.meta)
        if not 0 <= ms < MAX_POSITION:
            raise ValueError(f"its time is {ms} ms")
        return _complete(stream, event_id(ms, seq), ms, stored)
    except DECODE_ERRORS as problem:
        return unreadable_event(stream, seq, ms, body, problem)


def build_event(stream: str, id: str, body: dict[str, Any]) -> Event:
    """Build an event from a body that is already decoded. Raise one of DECODE_ERRORS if it has another shape."""
    stored = msgspec.convert(body, _Stored)
    check_shape(stored.kind, stored.data, stored.meta)
    return _complete(stream, id, int(id.partition("-")[0]), stored)


def unreadable_event(stream: str, seq: Any, ms: Any, raw: Any, problem: Exception | str) -> Event:
    """Build the event that stands for one that cannot be read, with what is wrong and the start of what is stored."""
    type_, id_ = _split(stream)
    at, position = _as_count(ms), _as_count(seq)
    if isinstance(raw, bytes):
        raw = raw[: 4 * MAX_RAW_CHARS].decode("utf-8", "backslashreplace")
    text = raw if isinstance(raw, str) else repr(raw)
    shown = text if len(text) <= MAX_RAW_CHARS else f"{text[:MAX_RAW_CHARS]}…"
    data = {"error": str(problem)[:MAX_RAW_CHARS], "raw": shown.encode("utf-8", "backslashreplace").decode()}
    flow, subject = id_ if type_ == "flow" else None, id_ or type_
    corr = subject if type_ in ("flow", "queue") else None
    return Event(event_id(at, position), to_iso(at), UNREADABLE, subject, flow, correlation_id=corr, data=data)


def describe_unreadable(stream: str, event: Event) -> str:
    """Return a sentence on an unreadable event, for logs: without what is stored, which may be secret."""
    error = event.data.get("error") if isinstance(event.data, dict) else None
    return f"event {event.id} of stream {stream or 'unknown'} cannot be read: {error}"


def _as_count(value: Any) -> int:
    return value if isinstance(value, int) and 0 <= value < MAX_POSITION else 0


def _complete(stream: str, id: str, ms: int, s: _Stored) -> Event:
    type_, id_ = _split(stream)
    subject = s.subject or id_ or type_
    flow, corr = s.flow, s.correlation_id
    if type_ == "flow":
        flow = flow or id_
    if type_ in ("flow", "queue"):
        corr = corr or subject
    return Event(id, to_iso(ms), s.kind, subject, flow, s.step, s.trigger, corr, s.data, s.meta)


def _split(stream: str) -> tuple[str, str]:
    """Return the type and the id of a stream."""
    return stream.partition(":")[2].partition(":")[::2]


def strip_event(stream: str, event: Event) -> EventBody:
    """Return the body of an event as it is stored, without the fields that its stream implies."""
    type_, id_ = _split(stream)
    subject = event.subject if event.subject != (id_ or type_) else None
    flow = event.flow if type_ != "flow" or event.flow != id_ else None
    is_implied = type_ in ("flow", "queue") and event.correlation_id == event.subject
    corr = None if is_implied else event.correlation_id
    data = msgspec.Raw(_encoder.encode(event.data)) if event.data is not None else None
    return EventBody(event.kind, subject, flow, event.step, event.trigger, corr, data, event.meta)


class BadStream(PenstockError):
    """A stream name does not have the form `<namespace>:<type>:<id>`."""

    code = "bad_stream"


class Streams:
    """The stream names of one namespace."""

    def __init__(self, namespace: str = "nq") -> None:
        self.namespace = namespace
        self.global_stream = f"{namespace}:global"
        self._flow = f"{namespace}:flow:"
        self._types = dict.fromkeys(STREAM_TYPES)  # in this order

    def add_types(self, types: Iterable[str]) -> None:
        """Accept streams of further types: those of further kinds of runs."""
        self._types.update(dict.fromkeys(types))

    def flow(self, run: str) -> str:
        """Return the stream of a run."""
        return self._flow + run

    def run(self, kind: str, run: str) -> str:
        """Return the stream of a run of any kind."""
        return f"{self.namespace}:{kind}:{run}"

    def queue(self, queue: str) -> str:
        """Return the stream of a queue."""
        return f"{self.namespace}:queue:{queue}"

    def stream_name(self, type_: str, id_: str) -> str:
        """Return the stream of any type."""
        return f"{self.namespace}:{type_}:{id_}"

    def check_type(self, type_: str) -> str:
        """Return the type of streams, or raise BadStream with the known ones."""
        if type_ in self._types:
            return type_
        raise BadStream(f"unknown type of streams {shorten(type_)}; known types: {', '.join(self._types)}")

    def check(self, name: str) -> str:
        """Return the stream name, or raise BadStream with the accepted form."""
        parts = name.split(":") if isinstance(name, str) and len(name) <= MAX_STREAM_CHARS else []
        if name == self.global_stream or (
            len(parts) == 3 and parts[0] == self.namespace and parts[1] in self._types and parts[2]
        ):
            return name
        raise BadStream(
            f"a stream name must be {self.global_stream} or {self.namespace}:<type>:<id>, where <type> is one of "
            f"{', '.join(type_ for type_ in self._types if type_ != 'global')}; got {shorten(name)}"
        )


def log_topic(job: str) -> str:
    """Return what the log lines of a plain job are indexed by. No kind of an event contains a colon."""
    return f"log:{job}"


class EventBodies(Streams):
    """The streams of a namespace, and the encoder of event bodies.

    It is the one place where secrets are redacted before an event is written. Streams hold the redacted body; an event
    that code may receive also keeps its original.
    """

    def __init__(self, namespace: str = "nq", redactor: Redactor | None = None, *, records_state: bool = True) -> None:
        super().__init__(namespace)
        self._redactor = redactor or Redactor()
        self.records_state = records_state  # whether state changes are events of their run
        self.encode_start = lru_cache(1024)(self._encode_start)

    def encode(self, body: EventBody) -> bytes:
        """Encode an event's body as JSON, with secrets redacted."""
        return self._redactor.redact_json(encode_body(body))

    def _encode_start(self, kind: str, step: str | None, sample: str) -> bytes | None:
        """Return the start of a body, up to its `data`; None if secrets would be hidden in it or in the sample of its
        data. It is cached: events whose data differs from the sample in times and numbers only need no redaction."""
        start = b'%b,"data":' % encode_body(EventBody(kind, step=step))[:-1]
        whole = b"%b%b}" % (start, sample.encode())
        return start if self._redactor.redact_json(whole) == whole else None

    def encode_emitted(self, body: EventBody) -> tuple[bytes, bytes | None]:
        """Encode the body of an event that waits and flows may receive: redacted, and the original if it differs."""
        original = encode_body(body)
        redacted = self._redactor.redact_json(original)
        return redacted, None if redacted is original else original

    def redact_json(self, data: bytes) -> bytes:
        """Redact secrets in JSON; return the same bytes if there are none."""
        return self._redactor.redact_json(data)

    def redact_named(self, name: str, data: bytes) -> bytes:
        """Redact JSON that is stored under a name, such as a state key."""
        return self._redactor.redact_named(name, data)

    def redact_text(self, text: str) -> str:
        """Redact secrets in a text."""
        return self._redactor.redact_text(text)

    def redact_value(self, value: Any) -> Any:
        """Redact secrets in a JSON value."""
        return self._redactor.redact_value(value)


class BadEmit(PenstockError):
    """The emitted event has an invalid kind or form."""

    code = "bad_emit"


MAX_KIND_CHARS = 256
KIND_PATTERN = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*")


def check_kind(kind: str) -> str:
    """Return the kind, or raise BadEmit if it is invalid or reserved for the engine."""
    if not isinstance(kind, str) or len(kind) > MAX_KIND_CHARS or not KIND_PATTERN.fullmatch(kind):
        raise BadEmit(
            f"invalid event kind {shorten(kind)}; use at most {MAX_KIND_CHARS} letters, digits, '_' and '-', with dots "
            "between words, as in 'order.paid'"
        )
    if kind == UNREADABLE:
        raise BadEmit(f"event kind {kind!r} is reserved for events that cannot be read; rename the event")
    if kind.startswith(RESERVED_PREFIXES):
        raise BadEmit(
            f"event kind {shorten(kind)} has a prefix reserved for the engine ({', '.join(RESERVED_PREFIXES)}); "
            "rename the event"
        )
    return kind
