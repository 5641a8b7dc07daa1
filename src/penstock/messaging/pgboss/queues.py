"""The queues of pg-boss: claim, finish and send jobs as pg-boss does."""

from __future__ import annotations

import logging
from typing import Any
from uuid import UUID

import asyncpg
import msgspec

from ...core.errors import NotJSON, PayloadTooLarge, StoreError, UnknownQueue
from ...core.payload import MAX_PAYLOAD_BYTES, pack, parse_json
from ...stores.postgres.connection import Connection
from .schema import DEAD_LETTER_SOURCE_VERSION, Statements

log = logging.getLogger("penstock.pgboss")

MAX_ERROR_CHARS = 2000
# What Postgres raises for one row: a value it cannot store, a violated constraint, something too large or too complex.
_ROW_ERRORS = ("22", "23", "54")


class ActiveJob(msgspec.Struct, frozen=True):
    """A job that this process has claimed. `retries` distinguishes the claim from a later one."""

    queue: str
    id: str
    retries: int
    data: str | None = None  # also None if it is too large
    size: int = 0  # of the data, in bytes
    expire_seconds: int = 0
    heartbeat_seconds: int | None = None

    def read_data(self) -> Any:
        """Return its data, or raise PayloadError."""
        return read_data(self.data, self.size, f"the data of pg-boss job {self.id}")


def read_data(text: str | None, size: int, what: str) -> Any:
    """Return the data of a job that a statement read, or raise PayloadError."""
    if size > MAX_PAYLOAD_BYTES:
        raise PayloadTooLarge(f"{what} is {size:,} bytes; the limit is {MAX_PAYLOAD_BYTES:,}")
    return parse_json(text, what) if text is not None else None


def is_row_error(problem: BaseException) -> bool:
    """Return whether Postgres refused one row: another one may be accepted, and this one never."""
    found = problem.__cause__ if isinstance(problem, StoreError) else problem
    if isinstance(found, asyncpg.UniqueViolationError):
        return False  # a conflict with another transaction: the same work is repeated
    return isinstance(found, asyncpg.PostgresError) and (found.sqlstate or "").startswith(_ROW_ERRORS)


def describe_error(problem: BaseException) -> str:
    """Return the message of an error as jsonb can store it."""
    try:
        text = str(problem)[:MAX_ERROR_CHARS]
    except Exception:  # raised by its own __str__
        return ""
    return text.replace("\0", "\ufffd").encode("utf-8", "replace").decode()


class Queues:
    """The queues of one pg-boss schema. The caller passes the connection."""

    def __init__(self, sql: Statements, version: int) -> None:
        self._sql = sql
        self._version = version

    async def claim(self, connection: Connection, queue: str) -> ActiveJob | None:
        """Claim the next job and make it active. Return None if none is due."""
        row = await connection.fetchrow(self._sql.claim, queue, MAX_PAYLOAD_BYTES)
        if row is None:
            return None
        id, data, size, retries, expire_seconds, heartbeat_seconds = row
        return ActiveJob(queue, str(id), retries, data, size, expire_seconds, heartbeat_seconds)

    async def depth(self, connection: Connection, queue: str) -> int:
        """Return how many jobs are due and not claimed."""
        return int(await connection.fetchval(self._sql.depth, queue))

    async def touch(self, connection: Connection, job: ActiveJob) -> bool:
        """Record a heartbeat. Return False if the claim is lost."""
        return bool(await connection.fetchval(self._sql.touch, job.queue, UUID(job.id), job.retries))

    async def release(self, connection: Connection, job: ActiveJob) -> bool:
        """Put the job back as it was before the claim. Return False if the claim is lost."""
        return bool(await connection.fetchval(self._sql.release, job.queue, UUID(job.id), job.retries))

    async def complete(self, connection: Connection, job: ActiveJob, output: Any = None) -> bool:
        """Complete the job. Return False if the claim is lost. Raise NotJSON for an output that cannot be stored."""
        encoded = _encode_output(output)
        try:
            return bool(await connection.fetchval(self._sql.complete, job.queue, UUID(job.id), job.retries, encoded))
        except asyncpg.UntranslatableCharacterError:
            raise NotJSON("the result contains the character U+0000, which Postgres cannot store; remove it") from None

    async def fail(
        self, connection: Connection, job: ActiveJob, problem: BaseException, *, may_retry: bool = True
    ) -> str:
        """Fail the attempt as pg-boss does. Return its state, `retry` or `failed`, or "" if the claim is lost."""
        error = {"name": type(problem).__name__, "message": describe_error(problem)}
        reason: Exception | None = None
        # Another job with its key may wait already, and the queue's policy allows one: pg-boss fails this one too.
        for may in (may_retry, False):
            try:
                async with connection.transaction():
                    return await self._fail(connection, job, error, may)
            except asyncpg.PostgresError as refused:
                if not isinstance(refused, asyncpg.UniqueViolationError) and not is_row_error(refused):
                    raise
                reason = refused
        log.error("cannot copy pg-boss job %s of queue %r to its dead letter queue: %s", job.id, job.queue, reason)
        return await self._fail(connection, job, error, False, has_dead_letter=False)

    async def _fail(
        self,
        connection: Connection,
        job: ActiveJob,
        error: dict[str, str],
        may_retry: bool,
        *,
        has_dead_letter: bool = True,
    ) -> str:
        values = (job.queue, UUID(job.id), job.retries, pack(error).decode(), may_retry, has_dead_letter)
        row = await connection.fetchrow(self._sql.fail, *values)
        if row is None:
            return ""
        state, dead_letter_queue, dead_letter = row
        if dead_letter is not None and self._version >= DEAD_LETTER_SOURCE_VERSION:
            source = (dead_letter_queue, dead_letter, job.queue, UUID(job.id))
            await connection.execute(self._sql.set_dead_letter_source, *source)
        return str(state)

    async def fail_overdue(self, connection: Connection, queue: str) -> int:
        """Fail jobs whose worker is gone, as pg-boss does where it runs. Return how many."""
        rows = await connection.fetch(self._sql.overdue_jobs, queue)
        for id, retries in rows:
            await self.fail(connection, ActiveJob(queue, str(id), retries), TimeoutError("job timed out"))
        return len(rows)

    async def send(
        self,
        connection: Connection,
        queue: str,
        data: Any,
        *,
        id: str | None = None,
        priority: int = 0,
        due_ms: int | None = None,
        singleton_key: str | None = None,
        expire_seconds: int | None = None,
        retry_limit: int | None = None,
        retry_delay: int | None = None,
        retry_backoff: bool | None = None,
        dead_letter: str | None = None,
    ) -> str | None:
        """Add a job and return its id. Return None if the id exists or the queue's policy allows no other job."""
        job_id = UUID(id) if id is not None else None
        due = due_ms / 1000 if due_ms is not None else None
        body = pack(data, f"the data of a job of pg-boss queue {queue!r}").decode()
        sent, _, is_known = await connection.fetchrow(
            self._sql.send, queue, job_id, body, priority, due, singleton_key, expire_seconds, retry_limit, retry_delay,
            retry_backoff, dead_letter, self._sql.schema.lower(),
        )  # fmt: skip
        if not is_known:
            raise UnknownQueue(
                f"pg-boss has no queue {queue!r} in schema {self._sql.schema!r}; check the name, or create the "
                f"queue with boss.createQueue({queue!r})"
            )
        return str(sent) if sent is not None else None


def _encode_output(value: Any) -> str | None:
    """Return the JSON that pg-boss stores for a result: an object, other values wrapped in one."""
    if value is None:
        return None
    return pack(value if isinstance(value, dict) else {"value": value}, "the result").decode()
