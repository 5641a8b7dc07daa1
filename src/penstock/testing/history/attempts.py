"""The rules of one stream and of the attempts it records: only a job's newest attempt may record anything."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ...core.errors import WorkerLost
from ...core.events import Event
from .records import Violation, instance_of, is_user_kind, meta_of, started_job
from .wait_rules import WAIT_ENDED_KINDS, WAIT_STARTED_KINDS

# Kinds that an attempt records about itself: only the newest attempt of a job may.
ATTEMPT_KINDS = frozenset(
    f"{family}.{what}"
    for family in ("step", "job")
    for what in ("completed", "failed", "cancelled", "returned", "progress", "partial")
) | {"log", "buffer.drop", "schema.error", *WAIT_STARTED_KINDS, *WAIT_ENDED_KINDS}


def check_stream(stream: str, events: Sequence[Event]) -> Iterator[Violation]:
    """Check that the sequence has no gap and time never goes back."""
    last_ms = last_seq = 0
    for event in events:
        ms, seq = (int(part) for part in event.id.split("-"))
        if last_seq and seq != last_seq + 1:
            yield Violation("seq", stream, f"{event.id} ({event.kind}) follows sequence {last_seq}")
        if ms < last_ms:
            yield Violation("time", stream, f"{event.id} ({event.kind}) goes back from {last_ms}")
        last_ms, last_seq = ms, seq


class Attempts:
    """The attempts of each job in one stream. An event that names no job belongs to its step's newest job."""

    def __init__(self, stream: str, is_undisturbed: bool) -> None:
        self._stream = stream
        self._is_undisturbed = is_undisturbed
        self._over: set[tuple[str, int]] = set()  # attempts that failed or suspended
        self._jobs: dict[tuple[str, int], str] = {}
        self.latest: dict[str, int] = {}
        self.ended: dict[str, str] = {}

    def job_of(self, event: Event) -> str | None:
        if event.flow is None:
            return event.subject  # the subject of a plain job's events is the job
        meta = event.meta or {}
        job = meta.get("jobId") or self._jobs.get(instance_of(event))
        # An event emitted by a handler names its job as the cause; no attempt wrote an event from outside.
        return meta.get("causationId") if is_user_kind(event.kind) and "jobId" not in meta else job

    def check_start(self, event: Event) -> Iterator[Violation]:
        """Check that attempts count from 1 without a gap and none starts after the job's end.

        A claim that suspends on a wait has the number of the claim that follows it."""
        job, attempt = started_job(event), meta_of(event, "attempt")
        self._jobs[instance_of(event)] = job
        before = self.latest.get(job, 0)
        if attempt != before + 1 and not (attempt == before and (job, before) in self._over):
            yield Violation("attempts", self._stream, f"{job}: attempt {attempt} starts after attempt {before}")
        if job in self.ended:
            yield Violation("attempts", self._stream, f"{job}: attempt {attempt} starts after {self.ended[job]}")
        if self._is_undisturbed and before and (job, before) not in self._over:
            yield Violation("wasted", self._stream, f"{job}: attempt {attempt} starts, attempt {before} did not end")
        self.latest[job] = max(attempt, before)
        self._over.discard((job, attempt))

    def check_record(self, event: Event) -> Iterator[Violation]:
        """Check that an attempt records nothing after a later attempt has started or its job has ended."""
        job, attempt = self.job_of(event), meta_of(event, "attempt")
        if event.kind == "step.resumed" and job is not None:
            # The wait was resolved before the attempt suspended: it then releases the job and records nothing.
            self._over.add((job, self.latest.get(job, 0)))
        if attempt is None:
            return
        if event.kind in ("step.returned", "job.returned"):
            # With the number of the attempt before, its own handler was not called.
            self._over.add((job or "", attempt))
            if attempt == self.latest.get(job or "", 0) - 1:
                self.latest[job or ""] = attempt
        if event.kind in ("step.failed", "job.failed", *WAIT_STARTED_KINDS):
            self._over.add((job or "", attempt))
        newest, what = self.latest.get(job or "", 0), f"{event.id} {event.kind} of {job}"
        is_lost = event.kind in ("step.failed", "job.failed") and _code(event) == WorkerLost.code
        if attempt != newest - is_lost:  # a lost job fails without another attempt
            yield Violation("fence", self._stream, f"{what} is from attempt {attempt}, but {newest} is the newest")
        if job in self.ended:
            yield Violation("fence", self._stream, f"{what} follows {self.ended[job]}")

    def check_end(self, event: Event) -> Iterator[Violation]:
        """Check that a started job ends, and ends once."""
        job = self.job_of(event)
        if job is None:
            yield Violation("attempts", self._stream, f"{event.id} {event.kind} of {event.step}, which never started")
            return
        if job in self.ended:
            yield Violation("completion", self._stream, f"{job}: {event.kind} after {self.ended[job]}")
        self.ended[job] = f"{event.kind} ({event.id})"


def _code(event: Event) -> str | None:
    return event.data.get("code") if isinstance(event.data, dict) else None
