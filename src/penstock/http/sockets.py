"""WebSockets: many subscriptions and commands on one connection.

The client sends `{"op": "subscribe", "id": …, "stream": …, "after": …}`, `backfill` or `snapshot` instead of `after`
and the filters `kinds`, `steps`, `flows`, `queue` and `job` if it wants them, `{"op": "unsubscribe", "id": …}`,
`{"op": "call", "id": …, "method": …, "path": …, "body": …}` and `{"op": "ping"}`. The server answers each with
`{"op": "subscribed" | "unsubscribed" | "reply" | "pong" | "error", "id": …}` and sends the events of a subscription as
`{"v": 1, "sub": …, "cursor": …, "stream": …, "event": …, "record": …}`. `{"op": "cursor", "id": …, "cursor": …}` names
the place to continue after, at the start and where only events were passed over that the client does not want.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, aclosing
from typing import Any

import msgspec
from starlette.datastructures import QueryParams
from starlette.websockets import WebSocket, WebSocketDisconnect

from ..app.tokens import Caller
from ..core.api_errors import ApiError, NoRoute
from ..core.errors import PenstockError
from ..core.payload import parse_json
from .dispatch import call_endpoint, check_role
from .endpoints import Call
from .job_messages import job_message
from .protocol import DROP
from .services import Services
from .shared_reader import LiveEvent, SharedReader
from .sse import STALL_REASON, STALL_TIMEOUT_S, envelope
from .statuses import status_of

MAX_SUBSCRIPTIONS = 200
MAX_FRAME_BYTES = 2**20
POLICY_VIOLATION, TRY_AGAIN_LATER = 1008, 1013

Encode = Callable[[LiveEvent], bytes | None]


class Command(msgspec.Struct, forbid_unknown_fields=True):
    """A message of the client."""

    op: str
    id: str = ""
    stream: str | None = None
    queue: str | None = None
    job: str | None = None
    kinds: list[str] | None = None
    steps: list[str] | None = None
    flows: list[str] | None = None
    backfill: int = 0  # newest events of a stream to send first, without `after`
    snapshot: bool = False  # first send the folded state of a run, then what comes after it
    after: str | None = None
    method: str = "GET"
    path: str = ""
    body: Any = None


SOCKETS: dict[str, Encode] = {
    "/api/_events/ws": envelope,
    "/api/_queue/ws": lambda live: job_message(live, "job"),
    "/api/_runner/ws": lambda live: job_message(live, "runner"),
}


async def serve_socket(services: Services, websocket: WebSocket, path: str) -> None:
    """Serve one connection until the client leaves. Raise if its path or its caller is refused."""
    encode = SOCKETS.get(path)
    if encode is None:
        raise NoRoute(f"no socket {path[:200]!r}; there are {', '.join(SOCKETS)}")
    caller = await services.guard.identify(websocket, allow_ticket=True)
    await websocket.accept()
    await SocketSession(services, websocket, caller, encode).run()


async def refuse_socket(websocket: WebSocket, problem: PenstockError) -> None:
    """Refuse a connection: the handshake is answered with 403."""
    await websocket.close(POLICY_VIOLATION, f"{problem.code}: {problem}"[:120])


class SocketSession:
    """One connection: its caller, its subscriptions and the lock that keeps its frames whole."""

    def __init__(self, services: Services, websocket: WebSocket, caller: Caller, encode: Encode) -> None:
        self._services = services
        self._websocket = websocket
        self._caller = caller
        self._encode = encode
        self._subscriptions: dict[str, asyncio.Task[None]] = {}
        self._calls: set[asyncio.Task[None]] = set()
        self._sending = asyncio.Lock()

    async def run(self) -> None:
        try:
            while True:
                await self._handle(await self._websocket.receive_text())
        except (WebSocketDisconnect, RuntimeError):
            pass
        finally:
            tasks = [*self._subscriptions.values(), *self._calls]
            for task in tasks:
                task.cancel()
            if tasks:
                await asyncio.wait(tasks)

    async def _handle(self, text: str) -> None:
        id = ""
        try:
            command = _read(text)
            id = command.id
            match command.op:
                case "subscribe":
                    await self._subscribe(command)
                case "unsubscribe":
                    await self._unsubscribe(command)
                case "call":
                    self._start_call(command)
                case "ping":
                    await self._send({"op": "pong", "id": id})
                case _:
                    raise ApiError(f"unknown op {command.op[:50]!r}; use subscribe, unsubscribe, call or ping")
        except PenstockError as problem:
            await self._send({"op": "error", "id": id, "error": {"code": problem.code, "message": str(problem)}})

    async def _subscribe(self, command: Command) -> None:
        if command.id in self._subscriptions:
            raise ApiError(f"subscription {command.id[:50]!r} exists; use another id")
        if len(self._subscriptions) >= MAX_SUBSCRIPTIONS:
            raise ApiError(f"one connection has at most {MAX_SUBSCRIPTIONS} subscriptions; unsubscribe one first")
        share, accept = self._select(command)
        await self._send({"op": "subscribed", "id": command.id})
        task = asyncio.create_task(self._follow(command, share, accept))
        self._subscriptions[command.id] = task

    def _select(
        self, command: Command
    ) -> tuple[Callable[[], AbstractAsyncContextManager[SharedReader]], Callable[[LiveEvent], bool]]:
        bodies, readers = self._services.app._bodies, self._services.readers
        kinds, steps, flows = set(command.kinds or ()), set(command.steps or ()), set(command.flows or ())
        stream = bodies.queue(command.queue) if command.queue is not None else command.stream

        def accept(live: LiveEvent) -> bool:
            event = live.event
            return (
                (not kinds or event.kind in kinds)
                and (not steps or event.step in steps)
                and (not flows or event.flow in flows)
                and (command.job is None or event.subject == command.job)
            )

        if stream is None:
            return readers.feed, accept
        bodies.check(stream)
        return lambda: readers.stream(stream), accept

    async def _follow(
        self,
        command: Command,
        share: Callable[[], AbstractAsyncContextManager[SharedReader]],
        accept: Callable[[LiveEvent], bool],
    ) -> None:
        try:
            async with share() as reader:
                after = await self._find_start(command, reader)
                await self._send_cursor(command.id, after)
                async with aclosing(reader.follow(after, self._services.options.heartbeat_s)) as batches:
                    async for batch in batches:
                        await self._send_batch(command.id, batch, accept)
        except PenstockError as problem:
            await self._send(
                {"op": "error", "id": command.id, "error": {"code": problem.code, "message": str(problem)}}
            )
        except TimeoutError:
            self._drop()
        finally:
            self._subscriptions.pop(command.id, None)

    async def _find_start(self, command: Command, reader: SharedReader) -> str:
        """Return the cursor to follow after; send the snapshot first if one is wanted."""
        from .routes.events import find_backfill, read_state

        app, stream = self._services.app, command.stream
        if command.after is not None:
            return command.after
        if command.snapshot and stream is not None:
            view = await read_state(app, *stream.split(":", 2)[1:])
            body = app._bodies.redact_json(msgspec.json.encode(view))
            await self._send_text(b'{"op":"snapshot","id":%b,"record":%b}' % (msgspec.json.encode(command.id), body))
            return getattr(view, "last_event", None) or ""
        if command.backfill and stream is not None:
            return await find_backfill(app, stream, command.backfill)
        return reader.cursor

    async def _send_batch(
        self, id: str, batch: Sequence[LiveEvent] | None, accept: Callable[[LiveEvent], bool]
    ) -> None:
        if batch is None:
            await self._send({"op": "heartbeat", "id": id})
            return
        head = b'{"sub":%b,"cursor":' % msgspec.json.encode(id)
        last_sent: LiveEvent | None = None
        for live in batch:
            if accept(live) and (body := self._encode(live)) is not None:
                cursor = msgspec.json.encode(live.cursor)
                await self._send_text(b"%b%b,%b" % (head, cursor, body[1:]))
                last_sent = live
        if last_sent is None:  # move the client's cursor on, so that a reconnect does not read all of it again
            await self._send_cursor(id, batch[-1].cursor)

    async def _send_cursor(self, id: str, cursor: str) -> None:
        await self._send({"op": "cursor", "id": id, "cursor": cursor})

    async def _unsubscribe(self, command: Command) -> None:
        task = self._subscriptions.pop(command.id, None)
        if task is None:
            raise ApiError(f"no subscription {command.id[:50]!r}")
        task.cancel()
        await asyncio.wait((task,))
        await self._send({"op": "unsubscribed", "id": command.id})

    def _start_call(self, command: Command) -> None:
        task = asyncio.create_task(self._call(command))
        self._calls.add(task)
        task.add_done_callback(self._calls.discard)

    async def _call(self, command: Command) -> None:
        try:
            path, _, query = command.path.partition("?")
            endpoint, path_params = self._services.router.find(command.method.upper(), path)
            check_role(endpoint, self._caller)
            if endpoint.is_stream:
                raise ApiError("this path is an event stream; use the op subscribe")
            body = b"" if command.body is None else msgspec.json.encode(command.body)
            call = Call(self._caller, self._websocket, self._services, path, QueryParams(query), body)
            response = await call_endpoint(endpoint, call, path_params)
            id, status = msgspec.json.encode(command.id), response.status_code
            await self._send_text(b'{"op":"reply","id":%b,"status":%d,"body":%b}' % (id, status, bytes(response.body)))
        except PenstockError as problem:
            error = {"code": problem.code, "message": str(problem)}
            await self._send({"op": "reply", "id": command.id, "status": status_of(problem), "body": {"error": error}})

    def _drop(self) -> None:
        """Close the connection of a client that does not read; a close that waits for it would wait for ever."""
        drop = self._websocket.scope.get("extensions", {}).get(DROP)
        if drop is not None:
            drop(TRY_AGAIN_LATER, STALL_REASON)

    async def _send(self, message: dict[str, Any]) -> None:
        await self._send_text(msgspec.json.encode(message))

    async def _send_text(self, message: bytes) -> None:
        async with self._sending, asyncio.timeout(STALL_TIMEOUT_S):
            await self._websocket.send_text(message.decode())


def _read(text: str) -> Command:
    if len(text) > MAX_FRAME_BYTES:
        raise ApiError(f"a message has {len(text):,} characters; the limit is {MAX_FRAME_BYTES:,}")
    try:
        return msgspec.convert(parse_json(text, "the message", MAX_FRAME_BYTES), Command)
    except msgspec.ValidationError as problem:
        raise ApiError(f"invalid message: {problem}") from None
