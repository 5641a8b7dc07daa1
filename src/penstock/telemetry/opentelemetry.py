"""OpenTelemetry: traces and metrics of an App, with the API only. The SDK and its exporters are your application's.

    app = App(listeners=[OpenTelemetry()])     # or PENSTOCK_OPENTELEMETRY=on, also for `penstock worker` and `serve`

Names follow the semantic conventions for messaging. Install `penstock[otel]`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, Literal

from opentelemetry import context as otel_context
from opentelemetry import metrics, trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, NonRecordingSpan, SpanContext, SpanKind, Status, StatusCode, TraceFlags

from .. import __version__
from ..core.errors import ConfigError
from ..core.text import shorten
from ..core.trace_context import current_trace, is_traceparent
from ..ports.unit import DELIVERIES
from .instrumentation import (
    AttemptEnded,
    AttemptStarted,
    BatchCommitted,
    InstrumentationEvent,
    JobClaimed,
    JobEnqueued,
    LeaseLost,
    ScheduleSlot,
    WaitChanged,
)

Durations = Literal["all", "sampled"]
SYSTEM = "penstock"
_ROOT = Context()
_FAILED = ("failed", "retrying")


def format_trace(context: SpanContext) -> str:
    """Return the `traceparent` of a span."""
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"


def read_trace(text: str) -> SpanContext:
    """Return the span that a `traceparent` names."""
    return SpanContext(int(text[3:35], 16), int(text[36:52], 16), True, TraceFlags(int(text[53:55], 16)))


@lru_cache(256)  # the attempts of a trace that is not sampled all have the same text
def parent_context(text: str | None) -> Context:
    """Return a context whose span is the one that a `traceparent` names; without one, a context without a span."""
    return trace.set_span_in_context(NonRecordingSpan(read_trace(text)), _ROOT) if text else _ROOT


class _OpenSpan:
    """A command or a request that is under way."""

    __slots__ = ("_span",)

    def __init__(self, span: trace.Span) -> None:
        self._span = span

    def set(self, name: str, value: Any) -> None:
        self._span.set_attribute(name, value)


class _Command(_OpenSpan):
    """A command: what it creates joins its span. Written out, because a generator costs as much as the span."""

    __slots__ = ("_before", "_context", "_token")

    def __init__(self, span: trace.Span, parent: Context) -> None:
        super().__init__(span)
        self._context = trace.set_span_in_context(span, parent)

    def __enter__(self) -> _OpenSpan:
        self._token = otel_context.attach(self._context)
        self._before = current_trace.set(format_trace(self._span.get_span_context()))
        return self

    def __exit__(self, kind: type[BaseException] | None, problem: BaseException | None, _trace: object) -> None:
        otel_context.detach(self._token)
        current_trace.reset(self._before)
        if kind is not None:
            _set_error(self._span, kind.__name__, None)
        self._span.end()


class _CallSpan:
    """A durable call whose function runs."""

    __slots__ = ("_context", "_span")

    def __init__(self, span: trace.Span, context: Context) -> None:
        self._span: trace.Span | None = span
        self._context = context

    def activate(self) -> Callable[[], None]:
        token = otel_context.attach(self._context)
        return lambda: otel_context.detach(token)

    def end(self, error: BaseException | None = None, *, is_recorded: bool = True) -> None:
        span, self._span = self._span, None
        if span is None:
            return
        if error is not None:
            _set_error(span, type(error).__name__, None)
        elif not is_recorded:
            span.set_attribute("penstock.recorded", False)
        span.end()


class _AttemptSpan:
    """An attempt that runs."""

    __slots__ = ("_context", "_span", "_tracer", "traceparent")

    def __init__(self, tracer: trace.Tracer, span: trace.Span) -> None:
        self._tracer = tracer
        self._span: trace.Span | None = span
        self._context = trace.set_span_in_context(span, _ROOT)
        self.traceparent = format_trace(span.get_span_context())

    def activate(self) -> Callable[[], None]:
        token, before = otel_context.attach(self._context), current_trace.set(self.traceparent)

        def leave() -> None:
            otel_context.detach(token)
            current_trace.reset(before)

        return leave

    def start_call(self, key: str) -> _CallSpan:
        attributes = {"penstock.call": key}
        span = self._tracer.start_span(f"run {key.rpartition('#')[0]}", self._context, SpanKind.INTERNAL, attributes)
        return _CallSpan(span, trace.set_span_in_context(span, self._context))

    def end(self, event: AttemptEnded | None) -> None:
        span, self._span = self._span, None
        if span is None:
            return
        if event is None:
            span.set_attribute("penstock.recorded", False)
        else:
            span.set_attribute("penstock.outcome", event.outcome)
            if not event.is_recorded:
                span.set_attribute("penstock.recorded", False)
            if event.outcome in _FAILED:
                _set_error(span, event.error or "error", event.message)
                _add_exception(span, event)
        span.end()


class _UnsampledSpan:
    """An attempt of a trace that is not sampled: it passes the decision on, and makes no span."""

    __slots__ = ("traceparent",)

    def __init__(self, trace: str) -> None:
        self.traceparent = trace

    def activate(self) -> Callable[[], None]:
        token, before = otel_context.attach(parent_context(self.traceparent)), current_trace.set(self.traceparent)

        def leave() -> None:
            otel_context.detach(token)
            current_trace.reset(before)

        return leave

    def start_call(self, key: str) -> None:
        """Make no span."""

    def end(self, event: AttemptEnded | None) -> None:
        """End nothing."""


def is_sampled(text: str) -> bool:
    """Return whether the trace that a `traceparent` names is sampled."""
    return text[54] in "13579bdf"


class OpenTelemetry:
    """A listener of an App that makes spans and metrics. Whether a trace is sampled is decided where it begins.

    Args:
        tracer_provider: Where spans go. Default: the global provider of your application.
        meter_provider: Where metrics go. Default: the global provider of your application.
        durations: The attempts in `messaging.process.duration`: "all", or "sampled" for those of sampled traces. The
            SDK needs more time for a duration than Penstock for all of its own counters.
    """

    def __init__(
        self,
        tracer_provider: trace.TracerProvider | None = None,
        meter_provider: metrics.MeterProvider | None = None,
        *,
        durations: Durations = "all",
    ) -> None:
        if durations not in ("all", "sampled"):
            raise ConfigError(f"durations must be 'all' or 'sampled', got {shorten(durations)}")
        self._tracer = trace.get_tracer("penstock", __version__, tracer_provider)
        self._meter = metrics.get_meter("penstock", __version__, meter_provider)
        self._count = _Metrics(self._meter, durations).counters.get

    def __call__(self, event: InstrumentationEvent) -> None:
        count = self._count(type(event))
        if count is not None:
            count(event)

    def produce(self, operation: str, destination: str) -> _Command:
        parent = otel_context.get_current()
        if not trace.get_current_span(parent).get_span_context().is_valid and (known := current_trace.get()):
            parent = trace.set_span_in_context(NonRecordingSpan(read_trace(known)), parent)
        attributes = {
            "messaging.system": SYSTEM,
            "messaging.operation.name": operation,
            "messaging.operation.type": "send",
            "messaging.destination.name": destination,
        }
        span = self._tracer.start_span(f"{operation} {destination}", parent, SpanKind.PRODUCER, attributes)
        return _Command(span, parent)

    @contextmanager
    def serve(self, method: str, route: str, headers: Mapping[str, str]) -> Iterator[_OpenSpan]:
        here = trace.get_current_span()
        if here.get_span_context().is_valid:  # an instrumentation of the web framework has a span already
            with _joined(format_trace(here.get_span_context())):
                yield _OpenSpan(here)
            return
        header = headers.get("traceparent")
        parent = parent_context(header if is_traceparent(header) else None)
        attributes = {"http.request.method": method, "http.route": route}
        with (
            self._tracer.start_as_current_span(
                f"{method} {route}", parent, SpanKind.SERVER, attributes, record_exception=False
            ) as span,
            _joined(format_trace(span.get_span_context())),
        ):
            yield _OpenSpan(span)

    def start_attempt(
        self, event: AttemptStarted, parent: str | None, links: Sequence[str]
    ) -> _AttemptSpan | _UnsampledSpan | None:
        if event.queue == DELIVERIES:  # internal: it carries traces on, and is not work of the application
            return None
        if parent is not None and not is_sampled(parent):
            return _UnsampledSpan(parent)
        attributes: dict[str, Any] = {
            "messaging.system": SYSTEM,
            "messaging.operation.name": "process",
            "messaging.operation.type": "process",
            "messaging.destination.name": event.queue,
            "messaging.message.id": event.job,
            "messaging.message.conversation_id": event.correlation_id,
            "messaging.client.id": event.worker,
            "penstock.job.name": event.name,
            "penstock.attempt": event.attempt,
        }
        if event.run is not None:
            attributes["penstock.run"] = event.run
            attributes["penstock.flow"] = event.flow or ""
            attributes["penstock.step"] = event.step or ""
        found = [Link(read_trace(link)) for link in links] if links else None
        context = parent_context(parent)
        span = self._tracer.start_span(f"process {event.queue}", context, SpanKind.CONSUMER, attributes, found)
        return _AttemptSpan(self._tracer, span)


@contextmanager
def _joined(text: str) -> Iterator[None]:
    token = current_trace.set(text)
    try:
        yield
    finally:
        current_trace.reset(token)


def _set_error(span: trace.Span, type_: str, message: str | None) -> None:
    span.set_attribute("error.type", type_)
    span.set_status(Status(StatusCode.ERROR, message))


def _add_exception(span: trace.Span, event: AttemptEnded) -> None:
    attributes = {"exception.type": event.error or "", "exception.message": event.message or ""}
    if event.stack is not None:
        attributes["exception.stacktrace"] = event.stack
    span.add_event("exception", attributes)


Labels = tuple[tuple[str, str | bool], ...]


class _Counts:
    """A counter that the SDK reads when it exports: counting is one addition, which the SDK's own counters are not."""

    def __init__(self, meter: metrics.Meter, name: str, unit: str, description: str) -> None:
        self._counts: dict[Labels, int] = {}
        meter.create_observable_counter(name, [self._observe], unit, description)

    def add(self, amount: int, labels: Labels = ()) -> None:
        self._counts[labels] = self._counts.get(labels, 0) + amount

    def _observe(self, _options: metrics.CallbackOptions) -> list[metrics.Observation]:
        return [metrics.Observation(count, dict(labels)) for labels, count in list(self._counts.items())]


class _Metrics:
    """The instruments. Those of the conventions have their names; the others begin with `penstock`."""

    def __init__(self, meter: metrics.Meter, durations: Durations) -> None:
        self._durations = durations
        self._sent = _Counts(meter, "messaging.client.sent.messages", "{message}", "Jobs enqueued")
        self._consumed = _Counts(meter, "messaging.client.consumed.messages", "{message}", "Jobs claimed")
        self._attempts = _Counts(meter, "penstock.attempts", "{attempt}", "Attempts that ended, by outcome")
        self._process = meter.create_histogram("messaging.process.duration", "s", "Duration of attempts")
        self._commit = meter.create_histogram("penstock.commit.duration", "s", "Duration of commits")
        self._units = _Counts(meter, "penstock.commit.units", "{unit}", "Units in commits")
        self._refused = _Counts(meter, "penstock.commit.refused", "{unit}", "Units that the store refused")
        self._lost = _Counts(meter, "penstock.leases.lost", "{lease}", "Leases that workers lost")
        self._waits = _Counts(meter, "penstock.waits", "{wait}", "Waits that changed, by state")
        self._slots = _Counts(meter, "penstock.schedule.slots", "{slot}", "Slots of schedules that passed")
        self.counters: dict[type, Callable[[Any], None]] = {
            JobEnqueued: self._count_enqueued,
            JobClaimed: self._count_claimed,
            AttemptEnded: self._count_ended,
            BatchCommitted: self._count_commit,
            LeaseLost: self._count_lost,
            WaitChanged: self._count_wait,
            ScheduleSlot: self._count_slot,
        }

    def _count_enqueued(self, event: JobEnqueued) -> None:
        self._sent.add(1, _labels(event.queue, "send"))

    def _count_claimed(self, event: JobClaimed) -> None:
        self._consumed.add(1, _labels(event.queue, "receive"))

    def _count_ended(self, event: AttemptEnded) -> None:
        labels = _attempt_labels(event.queue, event.outcome, event.error)
        self._attempts.add(1, labels)
        if self._durations == "all" or (event.trace is not None and is_sampled(event.trace)):
            self._process.record(event.duration_ms / 1000, dict(labels))

    def _count_commit(self, event: BatchCommitted) -> None:
        self._commit.record(event.duration_s)
        self._units.add(event.units)
        if event.refused:
            self._refused.add(event.refused)

    def _count_lost(self, event: LeaseLost) -> None:
        self._lost.add(1, (("messaging.destination.name", event.queue),))

    def _count_wait(self, event: WaitChanged) -> None:
        self._waits.add(1, (("penstock.wait.state", event.state),))

    def _count_slot(self, event: ScheduleSlot) -> None:
        self._slots.add(1, (("penstock.schedule", event.schedule), ("penstock.skipped", event.is_skipped)))


@lru_cache(1024)
def _attempt_labels(queue: str, outcome: str, error: str | None) -> Labels:
    found: Labels = (*_labels(queue, "process"), ("penstock.outcome", outcome))
    return found if error is None else (*found, ("error.type", error))


@lru_cache(1024)
def _labels(queue: str, operation: str) -> Labels:
    return (
        ("messaging.system", SYSTEM),
        ("messaging.destination.name", queue),
        ("messaging.operation.name", operation),
    )
