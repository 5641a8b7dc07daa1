"""Removes `started` events that are not JSON: the statement that claims their job would fail for all jobs."""

from __future__ import annotations

import logging
from typing import Any

import asyncpg

from ...core.payload import DECODE_ERRORS, unpack
from ...ports.unit import ClaimRequest
from .connection import Connection
from .statements import Statements

log = logging.getLogger("penstock.postgres")
STARTED_ERRORS = (asyncpg.InvalidTextRepresentationError, asyncpg.NotNullViolationError)
PAGE = 1000


async def clear_started(connection: Connection, sql: Statements, request: ClaimRequest) -> bool:
    """Clear the started events that cannot be read, in the queues of a request. Return whether there were any.

    The jobs then run without that event."""
    queues, bad, after = [demand.queue for demand in request.queues], [], 0
    while rows := await connection.fetch(sql.started_events, queues, after, PAGE):
        after = rows[-1]["pk"]
        bad += [row for row in rows if not _is_readable(row["started_prefix"])]
    if bad:
        await connection.execute(sql.clear_started_events, [row["pk"] for row in bad])
        log.error("removed the `started` events of %d jobs, such as %r: they are not JSON", len(bad), bad[0]["id"])
    return bool(bad)


def _is_readable(prefix: Any) -> bool:
    try:
        unpack(f'{prefix}"attempt":1,"worker":""}}}}'.encode())
    except DECODE_ERRORS:
        return False
    return prefix is not None
