"""The rules of one stream, and of the attempts it tells of: only the newest attempt of a job may speak."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ...core.events import Event
from .event_facts import instance, is_users, meta_of, started_job
from .facts import Violation
from .wait_rules import AWAITS, OPENED

# Kinds an attempt writes about itself: only the newest attempt of a job may.
OWN_KINDS = frozenset(
    f"{family}.{what}"
    for family in ("step", "job")
    for what in ("completed", "failed", "cancelled", "progress", "partial")
) | {"log", "buffer.drop", "schema.error", *AWAITS, *OPENED}


def check_stream(stream: str, events: Sequence[Event]) -> Iterator[Violation]:
    """Sequence gapless, time never going back."""
    last_ms = last_seq = 0
    for event in events:
        ms, seq = (int(part) for part in event.id.split("-"))
        if last_seq and seq != last_seq + 1:
            yield Violation("seq", stream, f"{event.id} ({event.kind}) follows sequence {last_seq}")
        if ms < last_ms:
            yield Violation("time", stream, f"{event.id} ({event.kind}) goes back from {last_ms}")
        last_ms, last_seq = ms, seq


class Attempts:
    """The attempts of each job, as its stream tells them. An event that names no job is of its step's newest one."""

    def __init__(self, stream: str, calm: bool) -> None:
        self._stream = stream
        self._calm = calm
        self._over: set[tuple[str, int]] = set()  # attempts that failed or went to sleep
        self._jobs: dict[tuple[str, int], str] = {}
        self.latest: dict[str, int] = {}
        self.ended: dict[str, str] = {}

    def job_of(self, event: Event) -> str | None:
        if event.flow is None:
            return event.subject  # a plain job's events are about the job
        meta = event.meta or {}
        job = meta.get("jobId") or self._jobs.get(instance(event))
        # What a handler emitted names its job as the cause; what came from outside was written by no attempt.
        return meta.get("causationId") if is_users(event.kind) and "jobId" not in meta else job

    def started(self, event: Event) -> Iterator[Violation]:
        job, attempt = started_job(event), meta_of(event, "attempt")
        self._jobs[instance(event)] = job
        before = self.latest.get(job, 0)
        if attempt != before + 1:
            yield Violation("attempts", self._stream, f"{job}: attempt {attempt} starts after attempt {before}")
        if job in self.ended:
            yield Violation("attempts", self._stream, f"{job}: attempt {attempt} starts after {self.ended[job]}")
        if self._calm and before and (job, before) not in self._over:
            yield Violation("wasted", self._stream, f"{job}: attempt {attempt} starts, attempt {before} did not end")
        self.latest[job] = max(attempt, before)

    def spoke(self, event: Event) -> Iterator[Violation]:
        """Whatever an attempt records is recorded while no later attempt has begun and its job has not ended."""
        job, attempt = self.job_of(event), meta_of(event, "attempt")
        if event.kind == "step.resumed" and job is not None:
            # What it was about to sleep on came first: then it gives the job back and says nothing.
            self._over.add((job, self.latest.get(job, 0)))
        if attempt is None:
            return
        if event.kind in ("step.failed", "job.failed", *AWAITS):
            self._over.add((job or "", attempt))
        newest, what = self.latest.get(job or "", 0), f"{event.id} {event.kind} of {job}"
        if attempt != newest:
            yield Violation("fence", self._stream, f"{what} is of attempt {attempt}, {newest} is the newest")
        if job in self.ended:
            yield Violation("fence", self._stream, f"{what} follows {self.ended[job]}")

    def end(self, event: Event) -> Iterator[Violation]:
        job = self.job_of(event)
        if job is None:
            yield Violation(
                "attempts", self._stream, f"{event.id} {event.kind} of {event.step}, which was never started"
            )
            return
        if job in self.ended:
            yield Violation("completion", self._stream, f"{job}: {event.kind} after {self.ended[job]}")
        self.ended[job] = f"{event.kind} ({event.id})"
