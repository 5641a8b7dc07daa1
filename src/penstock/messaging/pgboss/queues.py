"""The pg-boss side of a bridge: claiming its jobs, ending them as it would, adding some."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import asyncpg
import msgspec

from ...core.errors import UnknownQueue
from ...core.payload import pack
from ...stores.postgres.connection import Connection
from .schema import ORIGIN, Statements

MAX_ERROR = 2000  # characters of a message


class Held(msgspec.Struct, frozen=True):
    """A job that is active under our claim; `retries` tells the claim from a later one."""

    queue: str
    id: str
    retries: int
    data: str | None
    expires: int  # seconds
    heartbeat: int | None  # seconds


class Queues:
    """The queues of one pg-boss schema, on whatever connection is given."""

    def __init__(self, sql: Statements, version: int) -> None:
        self._sql = sql
        self._version = version

    async def claim(self, connection: Connection, queue: str) -> Held | None:
        """The next job, made active; None if there is none now."""
        row = await connection.fetchrow(self._sql.claim, queue)
        if row is None:
            return None
        id, data, retries, expires, heartbeat = row
        return Held(queue, str(id), retries, data, expires, heartbeat)

    async def touch(self, connection: Connection, held: Held) -> bool:
        """Shows that it is being worked on; False if the claim is lost."""
        return bool(await connection.fetchval(self._sql.touch, held.queue, UUID(held.id), held.retries))

    async def give_back(self, connection: Connection, held: Held) -> bool:
        """Puts it back as it was before the claim."""
        return bool(await connection.fetchval(self._sql.give_back, held.queue, UUID(held.id), held.retries))

    async def complete(self, connection: Connection, held: Held, output: Any = None) -> bool:
        """Ends it well; False if the claim is lost."""
        told = _output(output)
        return bool(await connection.fetchval(self._sql.complete, held.queue, UUID(held.id), held.retries, told))

    async def fail(self, connection: Connection, held: Held, problem: BaseException, *, again: bool = True) -> str:
        """Ends an attempt as pg-boss does: `retry` later, or `failed` with a dead letter; "" if the claim is lost."""
        error = {"name": type(problem).__name__, "message": str(problem)[:MAX_ERROR]}
        try:
            async with connection.transaction():
                return await self._fail(connection, held, error, again)
        except asyncpg.UniqueViolationError:
            # Another one of its key waits already, and its queue's policy allows one: pg-boss gives up on it too.
            async with connection.transaction():
                return await self._fail(connection, held, error, False)

    async def _fail(self, connection: Connection, held: Held, error: dict[str, str], again: bool) -> str:
        given = (held.queue, UUID(held.id), held.retries, pack(error).decode(), again)
        row = await connection.fetchrow(self._sql.fail, *given)
        if row is None:
            return ""
        state, letters, letter = row
        if letter is not None and self._version >= ORIGIN:
            await connection.execute(self._sql.note_origin, letters, letter, held.queue, UUID(held.id))
        return str(state)

    async def give_up_overdue(self, connection: Connection, queue: str) -> int:
        """Fails what another worker has left: pg-boss does so too, where it is running."""
        rows = await connection.fetch(self._sql.overdue, queue)
        for id, retries in rows:
            await self.fail(connection, Held(queue, str(id), retries, None, 0, None), TimeoutError("job timed out"))
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
        """Adds a job and gives its id; None if its id, or its queue's policy, says it is there already."""
        given = UUID(id) if id is not None else None
        due = due_ms / 1000 if due_ms is not None else None
        body = pack(data, f"the data of a job of pg-boss queue {queue!r}").decode()
        made, _, known = await connection.fetchrow(
            self._sql.send, queue, given, body, priority, due, singleton_key, expire_seconds, retry_limit, retry_delay,
            retry_backoff, dead_letter, self._sql.schema.lower(),
        )  # fmt: skip
        if not known:
            raise UnknownQueue(
                f"pg-boss has no queue {queue!r} in schema {self._sql.schema!r}: create it there, with "
                f"boss.createQueue({queue!r}), or check the name"
            )
        return str(made) if made is not None else None


def _output(value: Any) -> str | None:
    """What pg-boss keeps of a result: an object, others wrapped in one."""
    if value is None:
        return None
    return pack(value if isinstance(value, dict) else {"value": value}, "the result").decode()
