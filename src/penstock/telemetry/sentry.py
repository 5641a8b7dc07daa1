"""Sentry: final failures as issues, failed attempts before them as breadcrumbs, slots of schedules as check-ins.

    sentry_sdk.init(dsn=…)
    app = App(listeners=[Sentry()])

Install `penstock[sentry]`. What it sends is redacted as in the streams of the App; inputs and results are not sent.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from typing import Any

import sentry_sdk
from sentry_sdk.crons import capture_checkin
from sentry_sdk.crons.consts import MonitorStatus

from ..core.trace_context import split_trace
from .instrumentation import AttemptEnded, InstrumentationEvent, ScheduleSlot

MAX_JOBS_WITH_CRUMBS = 1000
_OF_SLOT = re.compile(r"(.+)\.\d{13}")  # the id of a job or run that a schedule has started


class Sentry:
    """A listener of an App that sends to Sentry, with the client that your application has initialised."""

    def __init__(self) -> None:
        self._crumbs: OrderedDict[str, list[dict[str, Any]]] = OrderedDict()  # of jobs whose attempts failed here

    def __call__(self, event: InstrumentationEvent) -> None:
        match event:
            case AttemptEnded(outcome="retrying"):
                self._add_crumb(event)
            case AttemptEnded(outcome="failed", is_recorded=True):
                self._capture(event, self._crumbs.pop(event.job, []))
            case AttemptEnded(outcome="completed"):
                self._crumbs.pop(event.job, None)
            case ScheduleSlot():
                status = MonitorStatus.ERROR if event.is_skipped else MonitorStatus.OK
                capture_checkin(monitor_slug=event.schedule, status=status)

    def _add_crumb(self, event: AttemptEnded) -> None:
        message = f"attempt {event.attempt} failed: {event.error}: {event.message}"
        data = {"worker": event.worker, "duration_ms": event.duration_ms}
        crumb = {"category": "penstock.attempt", "level": "warning", "message": message, "data": data}
        self._crumbs.setdefault(event.job, []).append(crumb)
        if len(self._crumbs) > MAX_JOBS_WITH_CRUMBS:
            self._crumbs.popitem(last=False)

    def _capture(self, event: AttemptEnded, crumbs: list[dict[str, Any]]) -> None:
        tags = {"queue": event.queue, "flow": event.flow, "step": event.step, "code": event.code}
        place = f"{event.flow}/{event.step}" if event.run is not None else f"{event.queue}/{event.name}"
        with sentry_sdk.isolation_scope() as scope:
            scope.clear_breadcrumbs()  # those of other work in this process
            for crumb in crumbs:
                scope.add_breadcrumb(crumb)
            scope.capture_event(
                {
                    "level": "error",
                    "transaction": place,
                    "exception": {"values": [{"type": event.error, "value": event.message}]},
                    "fingerprint": ["penstock", place, event.error or "", event.code or ""],
                    "tags": _drop_none(tags),
                    "contexts": {"penstock": _describe(event), **_trace(event.trace)},
                    "extra": {"stack": event.stack} if event.stack is not None else {},
                }
            )
        if (slot := _OF_SLOT.fullmatch(event.run or event.job)) is not None:
            capture_checkin(monitor_slug=slot[1], status=MonitorStatus.ERROR)


def _describe(event: AttemptEnded) -> dict[str, Any]:
    fields = {"job": event.job, "run": event.run, "attempt": event.attempt, "worker": event.worker}
    return _drop_none({**fields, "correlationId": event.correlation_id, "durationMs": event.duration_ms})


def _trace(trace: str | None) -> dict[str, Any]:
    """Return the context that joins the issue to its trace."""
    if trace is None:
        return {}
    trace_id, span_id = split_trace(trace)
    return {"trace": {"trace_id": trace_id, "span_id": span_id, "op": "queue.process"}}


def _drop_none(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}
