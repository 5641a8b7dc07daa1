"""Server-sent events: a backlog, then live events, with heartbeats; a client continues by `Last-Event-ID`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, aclosing
from typing import Any

import msgspec
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from .admission import Admission
from .deadline import Deadline
from .endpoints import Call
from .event_filter import EventFilter
from .protocol import DROP
from .shared_reader import Batch, LiveEvent, SharedReader
from .single_reader import SingleReader

HEADERS = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-store",
    "x-accel-buffering": "no",  # nginx passes each event on at once
    "x-content-type-options": "nosniff",
}
HEARTBEAT = b": heartbeat\n\n"
START = "0-0"  # before every event. A browser sends no Last-Event-ID for an empty one, and would begin anywhere
STALL_TIMEOUT_S = 30.0  # disconnect a client that accepts nothing for this long
STALL_REASON = "the client did not read for too long; reconnect with Last-Event-ID"

Frame = Callable[[LiveEvent], bytes]
Drop = Callable[[bytes], None]
Share = Callable[[], AbstractAsyncContextManager[SharedReader | SingleReader]]


def event_frame(live: LiveEvent) -> bytes:
    """Return an event of a single stream as a message."""
    return b"id: %b\ndata: %b\n\n" % (live.cursor.encode(), live.json)


def envelope(live: LiveEvent) -> bytes:
    """Return an event with the stream that it belongs to, as JSON."""
    stream, kind = msgspec.json.encode(live.stream), msgspec.json.encode(live.event.kind)
    return b'{"v":1,"stream":%b,"event":%b,"record":%b}' % (stream, kind, live.json)


def envelope_frame(live: LiveEvent) -> bytes:
    """Return an event of any stream as a message."""
    return b"id: %b\ndata: %b\n\n" % (live.cursor.encode(), envelope(live))


def named_frame(name: str, data: Any, id: str | None = None) -> bytes:
    """Return a message with a name, such as `snapshot` or `close`; bytes are JSON already."""
    head = b"id: %b\n" % id.encode() if id else b""
    text = data if isinstance(data, bytes) else msgspec.json.encode(data)
    return b"%bevent: %b\ndata: %b\n\n" % (head, name.encode(), text)


def cursor_frame(cursor: str) -> bytes:
    """Return the message that only moves the client's cursor."""
    return b"id: %b\nevent: cursor\ndata: \n\n" % (cursor or START).encode()


class EventStream(Response):
    """The response that follows a shared reader after a cursor.

    It sends only when the client has taken what was sent before, at most `buffer_limit` bytes at a time. A client that
    takes nothing for half a minute is disconnected with a reason; it continues by its cursor."""

    def __init__(
        self,
        call: Call,
        share: Share,
        after: str,
        *,
        frame: Frame = event_frame,
        wanted: EventFilter | None = None,
        first: Sequence[bytes] = (),
    ) -> None:
        super().__init__(status_code=200, headers=HEADERS)
        del self.headers["content-length"]
        self._options = call.services.options
        self._admission = Admission(call.services, call.request, call.caller)
        self._share = share
        self._after = after
        self._frame = frame
        self._wanted = wanted
        self._first = first

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        if scope["method"] == "HEAD":
            await send({"type": "http.response.body", "body": b"", "more_body": False})
            return
        sending = asyncio.ensure_future(self._send_all(send, scope.get("extensions", {}).get(DROP)))
        leaving = asyncio.ensure_future(_wait_for_disconnect(receive))
        refusing = asyncio.ensure_future(self._admission.wait_until_refused())
        tasks = (sending, leaving, refusing)
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
        if not sending.cancelled() and (problem := sending.exception()) is not None:
            raise problem
        if sending.cancelled() and leaving.cancelled() and not refusing.cancelled():
            await self._end(send, scope.get("extensions", {}).get(DROP), refusing.result())

    async def _end(self, send: Send, drop: Drop | None, reason: str) -> None:
        """End the stream of a caller that may no longer read it, whether it reads or not."""
        close = named_frame("close", {"reason": reason})
        if drop is not None:
            drop(close)
        else:
            await send({"type": "http.response.body", "body": close, "more_body": False})

    async def _send_all(self, send: Send, drop: Drop | None) -> None:
        stall = Deadline()

        async def write(data: bytes) -> None:
            with stall.within(STALL_TIMEOUT_S):
                await send({"type": "http.response.body", "body": data, "more_body": True})

        try:
            # A client that is cut off before the first event continues here as well.
            start = () if self._first else (cursor_frame(self._after),)
            await write(b"retry: 1000\n\n" + b"".join((*start, *self._first)))
            async with (
                self._share() as reader,
                aclosing(reader.follow(self._after, self._options.heartbeat_s)) as batches,
            ):
                async for batch in batches:
                    for part in await self._encode(batch):
                        await write(part)
            await write(named_frame("close", {"reason": "the server shuts down; reconnect with Last-Event-ID"}))
        except TimeoutError:
            if drop is not None:
                drop(named_frame("close", {"reason": STALL_REASON}))
            return
        finally:
            stall.close()
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _encode(self, batch: Batch | None) -> list[bytes]:
        if batch is None:
            return [HEARTBEAT]
        limit, wanted = self._options.buffer_limit, self._wanted
        if wanted is None or wanted.selects_all:  # encoded once for all clients
            parts = batch.encoded.get(self._frame)
            if parts is None:
                parts = batch.encoded[self._frame] = join_frames(map(self._frame, batch), limit)
            return parts
        found = await wanted.select(batch)
        if not found:  # move the client's cursor on, so that a reconnect does not read all of it again
            return [cursor_frame(batch[-1].cursor)]
        return join_frames(map(self._frame, found), limit)


def join_frames(frames: Iterable[bytes], limit: int) -> list[bytes]:
    """Join messages to parts of at most `limit` bytes; a longer message is a part of its own."""
    parts: list[bytes] = []
    current: list[bytes] = []
    size = 0
    for frame in frames:
        if current and size + len(frame) > limit:
            parts.append(b"".join(current))
            current, size = [], 0
        current.append(frame)
        size += len(frame)
    return [*parts, b"".join(current)] if current else parts


async def _wait_for_disconnect(receive: Receive) -> None:
    message: Message = {"type": ""}
    while message["type"] != "http.disconnect":
        message = await receive()
