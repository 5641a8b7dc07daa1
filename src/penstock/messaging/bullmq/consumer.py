"""Consume one queue of BullMQ, one job after the other.

A job is claimed under a lease, as by a worker of BullMQ. If this process dies, the lease expires and the job is
delivered again: its key makes the effect happen once. The end of an attempt is one commit on the queue's Redis: the
retry, or the failure together with the dead letter.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from ...core.errors import BadArgument, PayloadError, Permanent, StoreError, StoreUnavailable
from ...core.ids import new_token
from ...core.payload import pack, parse_json
from ...core.retry import RetryPolicy
from ...core.text import shorten
from ...core.trace_context import join_trace
from ...ports.bridge import BridgeHost, Message
from ...ports.unit import (
    Claim,
    ClaimBatch,
    ClaimRequest,
    Completed,
    Dead,
    Fenced,
    KeepJobs,
    NewJob,
    Outcome,
    QueueDemand,
    RateLimit,
    Released,
    RetryAt,
    Unit,
)
from ...stores.redis import RedisStore
from ...stores.redis.job_options import escape_id
from ..failures import DeadLetters, build_dead_message, decide_retry, describe_problem, describe_stack, urn_of
from ..options import read_limiter
from ..targets import CommandTarget, Routes, deliver_when_up
from .job_fields import JobFields, name_effect

log = logging.getLogger("penstock.bullmq")
OUTAGE_WAIT_S = 0.5
MAX_CRASHES = 10  # of the process that handles a job, before the job is a dead letter


class ConsumerOptions(msgspec.Struct, frozen=True):
    """How a queue is consumed."""

    retry: RetryPolicy
    dead_letters: DeadLetters
    keep_completed: KeepJobs | None
    keep_failed: KeepJobs | None
    concurrency: int = 1
    limiter: RateLimit | None = None
    lease_ms: int = 30_000
    poll_s: float = 0.2

    def demand(self, queue: str) -> QueueDemand:
        """Return what one loop claims. With a concurrency of 1, no two processes have a job of the queue at once, so
        that the order holds."""
        return QueueDemand(queue, 1, self.limiter, 1 if self.concurrency == 1 else None)


def read_options(defaults: ConsumerOptions, options: Mapping[str, Any] | None) -> ConsumerOptions:
    """Return the options of one `consume` call."""
    values = dict(options or {})
    changes: dict[str, Any] = {}
    if "concurrency" in values:
        changes["concurrency"] = check_concurrency(values.pop("concurrency"))
    if "limiter" in values:
        changes["limiter"] = read_limiter(values.pop("limiter"))
    if values:
        raise BadArgument(f"unknown option {next(iter(values))!r}; the options are concurrency and limiter")
    return msgspec.structs.replace(defaults, **changes)


def check_concurrency(value: Any) -> int:
    if type(value) is not int or not 1 <= value <= 1000:
        raise BadArgument(f"concurrency must be the number of jobs of a queue at once, 1 to 1000, got {shorten(value)}")
    return value


class JobLost(Exception):
    """Another worker has the job now."""


class Consumer:
    """Delivers the jobs of one queue to their targets, one after the other."""

    def __init__(
        self, queue: str, routes: Routes, store: RedisStore, host: BridgeHost | None, options: ConsumerOptions
    ) -> None:
        self._queue = queue
        self._routes = routes
        self._store = store
        self._host = host
        self._options = options
        self._name = f"bridge-{new_token()}"
        self._rng = random.Random()

    async def run(self, stopping: asyncio.Event) -> None:
        """Consume until stopped."""
        with self._store.signals.listen(f"queue:{self._queue}") as listener:
            batch = ClaimBatch()
            while True:
                try:
                    if not batch.claims and not stopping.is_set():
                        batch = await self._store.claim(self._request())
                    if batch.claims:
                        batch = await self._consume(batch.claims[0], stopping)
                        continue
                    if stopping.is_set():
                        return
                    await listener.wait(self._idle_s(batch))
                except StoreError as problem:
                    log.warning("cannot consume queue %r of BullMQ, trying again: %s", self._queue, problem)
                    batch = ClaimBatch()
                    await _wait(stopping, OUTAGE_WAIT_S)

    def _idle_s(self, batch: ClaimBatch) -> float:
        if batch.next_due is None:
            return self._options.poll_s
        due_s = (batch.next_due - self._store.clock.now_ms()) / 1000
        return min(max(due_s, 0.005), self._options.poll_s)

    def _request(self) -> ClaimRequest:
        return ClaimRequest((self._options.demand(self._queue),), self._options.lease_ms, self._name)

    async def _consume(self, claim: Claim, stopping: asyncio.Event) -> ClaimBatch:
        """Deliver one job, end its attempt, and claim the next one in the same call."""
        try:
            async with self._keep_lease(claim):
                fields = await self._read_fields(claim)
                outcome, jobs = await self._attempt(claim, fields)
        except JobLost:
            log.warning("another worker claimed job %s of queue %r before it was completed", claim.job, self._queue)
            return ClaimBatch()
        except asyncio.CancelledError:
            # The grace is over: give the job back, so that the next worker need not wait for the lease to expire.
            release = Unit(new_token(), claim=claim, outcome=Released(gives_attempt_back=True))
            with contextlib.suppress(StoreError):
                await asyncio.shield(self._store.commit([release]))
            raise
        unit = Unit(new_token(), claim=claim, outcome=outcome, jobs=jobs)
        return await self._commit(unit, None if stopping.is_set() else self._request())

    async def _commit(self, unit: Unit, request: ClaimRequest | None) -> ClaimBatch:
        """Commit the end of an attempt. A unit that is sent again after an outage is applied once."""
        while True:
            try:
                reply = await self._store.commit([unit], request)
            except StoreUnavailable as problem:
                log.warning("cannot end a job of queue %r of BullMQ, trying again: %s", self._queue, problem)
                await asyncio.sleep(OUTAGE_WAIT_S)
                continue
            if isinstance(reply.receipts[0], Fenced):
                log.warning("another worker claimed a job of queue %r before it was completed", self._queue)
            return reply.claimed

    async def _attempt(self, claim: Claim, fields: JobFields) -> tuple[Outcome, list[NewJob]]:
        """Deliver a job and return how its attempt ends."""
        opts = self._options
        message = Message(
            claim.job, self._queue, None, claim.attempt, claim.name,
            name_effect(self._queue, claim.job, fields.timestamp),
        )  # fmt: skip
        try:
            if claim.unreadable is not None:
                raise PayloadError(claim.unreadable)
            data = parse_json(claim.payload, f"the data of job {claim.job} of queue {self._queue!r}")
            message = msgspec.structs.replace(message, data=data)
            if claim.crashes >= MAX_CRASHES:
                raise Permanent(f"the process that handled the job died {claim.crashes} times")
            where = (claim.job, self._queue, urn_of(message), claim.attempt)
            log.debug("job %s of queue %r (%s) is processed, attempt %d", *where)
            with join_trace(fields.trace):
                result = await self._deliver(message)
            log.debug("job %s of queue %r (%s) was completed at attempt %d", *where)
            return Completed(result, fields.keep("removeOnComplete", opts.keep_completed)), []
        except (JobLost, asyncio.CancelledError):
            raise
        except Exception as problem:
            return self._fail(claim, fields, message, problem)

    async def _deliver(self, message: Message) -> bytes | None:
        """Deliver a message to its target. While our own store is away, the job waits; that is no attempt."""
        target = self._routes.find(message)
        if not isinstance(target, CommandTarget):
            result = await target(message)
            return None if result is None else pack(result, "the result")
        assert self._host is not None  # resolve_routes checked it
        await deliver_when_up(target, self._host, message)
        return None

    def _fail(
        self, claim: Claim, fields: JobFields, message: Message, problem: Exception
    ) -> tuple[Outcome, list[NewJob]]:
        failures, opts = claim.failures + 1, self._options
        delay_ms = decide_retry(fields.retry(opts.retry), problem, failures, self._rng)
        error = msgspec.json.encode(
            {"name": type(problem).__name__, "message": describe_problem(problem), "stack": describe_stack(problem)}
        )
        where = (claim.job, self._queue, urn_of(message), failures)
        if delay_ms is not None:
            log.warning("job %s of queue %r (%s) failed at attempt %d: %s", *where, describe_problem(problem))
            return RetryAt(self._store.clock.now_ms() + delay_ms, error), []
        log.error("job %s of queue %r (%s) failed for good at attempt %d: %s", *where, describe_problem(problem))
        keep = fields.keep("removeOnFail", opts.keep_failed)
        if not opts.dead_letters.enabled:
            return Dead(error, keep), []
        record = build_dead_message(message, problem, self._store.clock.now_ms(), failures)
        # A job may be retried by hand and fail again: that is another dead letter. Its fence makes each of them once.
        id = f"{name_effect(self._queue, claim.job, fields.timestamp)}-{claim.attempt}.dlq"
        letter = NewJob(id, self._queue + opts.dead_letters.suffix, f"{claim.name}-failed", record)
        log.warning("job %s of queue %r (%s) goes to queue %r", *where[:3], letter.queue)
        return Dead(error, keep), [letter]

    async def _read_fields(self, claim: Claim) -> JobFields:
        job = escape_id(claim.job)
        key = b":".join((self._store.queue_prefix.encode(), self._queue.encode(), _to_bytes(job)))
        opts, timestamp = await self._store.client.call("HMGET", key, "opts", "timestamp")
        return JobFields.read(opts, timestamp)

    @asynccontextmanager
    async def _keep_lease(self, claim: Claim) -> AsyncIterator[None]:
        """Renew the lease. Cancel the handler and raise JobLost if another worker has the job."""
        handler = asyncio.current_task()
        assert handler is not None
        lost = False

        async def renew() -> None:
            nonlocal lost
            while not lost:
                await asyncio.sleep(self._options.lease_ms / 3000)
                try:
                    lost = bool(await asyncio.to_thread(self._store.renew, [claim], self._options.lease_ms))
                except StoreError as problem:
                    log.warning("cannot renew the lease of job %s: %s", claim.job, problem)
            handler.cancel()

        task = asyncio.create_task(renew(), name="penstock-bullmq-lease")
        try:
            yield
        except asyncio.CancelledError:
            if lost and handler.uncancel() == 0:
                raise JobLost from None
            raise
        finally:
            task.cancel()


async def _wait(stopping: asyncio.Event, seconds: float) -> None:
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(stopping.wait(), seconds)


def _to_bytes(text: str | bytes) -> bytes:
    return text.encode() if isinstance(text, str) else text
