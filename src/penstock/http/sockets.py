"""WebSockets: many subscriptions and commands on one connection.

The client sends `{"op": "subscribe", "id": …, "stream": …, "after": …}`, `backfill` or `snapshot` instead of `after`
and the filters `kinds`, `steps`, `flows`, `tags`, `queue` and `job` if it wants them, `{"op": "unsubscribe", "id": …}`,
`{"op": "call", "id": …, "method": …, "path": …, "body": …}` and `{"op": "ping"}`. The server answers each with
`{"op": "subscribed" | "unsubscribed" | "reply" | "pong" | "error", "id": …}` and sends the events of a subscription as
`{"v": 1, "sub": …, "cursor": …, "stream": …, "event": …, "record": …}`. `{"op": "cursor", "id": …, "cursor": …}` names
the place to continue after, at the start and where only events were passed over that the client does not want.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, aclosing, suppress
from typing import Any
from urllib.parse import unquote

import msgspec
from starlette.datastructures import QueryParams
from starlette.responses import StreamingResponse
from starlette.websockets import WebSocket, WebSocketDisconnect

from ..app.tokens import Caller
from ..core.api_errors import ApiError, NoRoute, TooManyRequests
from ..core.errors import PenstockError
from .admission import REFUSALS, Admission
from .audit import check_reader, hidden_stream
from .auth import check_headers
from .dispatch import call_endpoint, check_role, error_object, error_response, internal_error
from .endpoints import Call, Endpoint
from .event_filter import EventFilter
from .job_messages import job_message
from .protocol import DROP
from .services import Services
from .shared_reader import LiveEvent, SharedReader, check_cursor
from .socket_messages import BadMessage, Command, close_reason, encode_body, read_answer, read_command
from .sse import STALL_REASON, STALL_TIMEOUT_S, envelope
from .statuses import status_of

log = logging.getLogger("penstock.http")

MAX_SUBSCRIPTIONS = 200
MAX_CALLS = 100  # that have no reply yet
MAX_CALL_BYTES = 10 * 2**20  # of their bodies
POLICY_VIOLATION, TRY_AGAIN_LATER = 1008, 1013

Encode = Callable[[LiveEvent], bytes | None]


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
    check_headers(websocket)
    caller = await services.guard.identify(websocket, allow_ticket=True)
    await websocket.accept()
    await SocketSession(services, websocket, Admission(services, websocket, caller), encode).run()


async def refuse_socket(services: Services | None, websocket: WebSocket, problem: PenstockError) -> None:
    """Refuse a connection: the handshake is answered with the status and the error of a request."""
    if "websocket.http.response" in websocket.scope.get("extensions", {}):
        await websocket.send_denial_response(error_response(services, problem))
        return
    error = error_object(services, problem)["error"]
    await websocket.close(POLICY_VIOLATION, close_reason(f"{error['code']}: {error['message']}"))


class SocketSession:
    """One connection: its caller, its subscriptions and the lock that keeps its frames whole."""

    def __init__(self, services: Services, websocket: WebSocket, admission: Admission, encode: Encode) -> None:
        self._services = services
        self._websocket = websocket
        self._admission = admission
        self._encode = encode
        self._subscriptions: dict[str, asyncio.Task[None]] = {}
        self._calls: set[asyncio.Task[None]] = set()
        self._call_bytes = 0
        self._sending = asyncio.Lock()
        self._exporting = asyncio.Lock()  # one long answer at a time is held for the client

    async def run(self) -> None:
        """Handle messages until the client leaves, reads nothing for too long, or may no longer call."""
        reading = asyncio.create_task(self._read_messages())
        refusing = asyncio.create_task(self._admission.wait_until_refused())
        try:
            await asyncio.wait((reading, refusing), return_when=asyncio.FIRST_COMPLETED)
            if refusing.done():
                await self._refuse(refusing.result())
        finally:
            tasks = [reading, refusing, *self._subscriptions.values(), *self._calls]
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
        if not reading.cancelled() and (problem := reading.exception()) is not None:
            raise problem

    async def _read_messages(self) -> None:
        try:
            while (message := await self._websocket.receive())["type"] == "websocket.receive":
                await self._handle(message.get("text"))
        except (WebSocketDisconnect, RuntimeError):  # the client left while something was sent to it
            pass
        except TimeoutError:
            self._drop()

    async def _handle(self, text: str | None) -> None:
        id = ""
        try:
            command = read_command(text)
            id = command.id
            match command.op:
                case "subscribe":
                    await self._subscribe(command)
                case "unsubscribe":
                    await self._unsubscribe(command)
                case "call":
                    await self._start_call(command)
                case "ping":
                    await self._send({"op": "pong", "id": id})
                case _:
                    raise ApiError(f"unknown op {command.op[:50]!r}; use subscribe, unsubscribe, call or ping")
        except BadMessage as problem:
            await self._send_error(problem.id, problem)
        except PenstockError as problem:
            await self._send_error(id, problem)

    async def _subscribe(self, command: Command) -> None:
        if command.id in self._subscriptions:
            raise ApiError(f"subscription {command.id[:50]!r} exists; use another id")
        if len(self._subscriptions) >= MAX_SUBSCRIPTIONS:
            raise ApiError(f"one connection has at most {MAX_SUBSCRIPTIONS} subscriptions; unsubscribe one first")
        if command.stream is not None and command.queue is not None:
            raise ApiError("a subscription has a stream or a queue, not both")
        try:
            caller = await self._admission.check()
        except REFUSALS as problem:
            await self._send_error(command.id, problem)
            await self._refuse(str(problem))
            return
        stream = self._find_stream(command, caller)
        if command.after is not None:
            await check_cursor(self._services.app.store, stream, command.after)
        wanted = EventFilter(
            self._services.flow_names,
            kinds=command.kinds or (),
            steps=command.steps or (),
            flows=command.flows or (),
            tags=command.tags or (),
            job=command.job,
            hidden=hidden_stream(self._services.app, caller) if stream is None else None,
        )
        await self._send({"op": "subscribed", "id": command.id})  # before the answer to the next message
        self._subscriptions[command.id] = asyncio.create_task(self._follow(command, stream, wanted))

    def _find_stream(self, command: Command, caller: Caller) -> str | None:
        """Return the stream to follow; None for the feed."""
        bodies = self._services.app._bodies
        stream = bodies.queue(command.queue) if command.queue is not None else command.stream
        return check_reader(caller, bodies.check(stream)) if stream is not None else None

    def _share(self, stream: str | None) -> AbstractAsyncContextManager[SharedReader]:
        readers = self._services.readers
        return readers.feed() if stream is None else readers.stream(stream)

    async def _follow(self, command: Command, stream: str | None, wanted: EventFilter) -> None:
        try:
            async with self._share(stream) as reader:
                after = await self._find_start(command, stream, reader)
                await self._send_cursor(command.id, after)
                async with aclosing(reader.follow(after, self._services.options.heartbeat_s)) as batches:
                    async for batch in batches:
                        await self._send_batch(command.id, batch, wanted)
        except PenstockError as problem:
            await self._send_error(command.id, problem)
        except TimeoutError:
            self._drop()
        except (WebSocketDisconnect, RuntimeError):
            pass
        except Exception as problem:  # a bug: it is logged, and the client knows that nothing more comes
            log.error("a subscription of a socket failed", exc_info=problem)
            with suppress(TimeoutError, WebSocketDisconnect, RuntimeError):
                await self._send({"op": "error", "id": command.id, **internal_error()})
        finally:
            if self._subscriptions.get(command.id) is asyncio.current_task():
                del self._subscriptions[command.id]

    async def _find_start(self, command: Command, stream: str | None, reader: SharedReader) -> str:
        """Return the cursor to follow after; send the snapshot first if one is wanted."""
        from .routes.events import find_backfill, take_snapshot

        app = self._services.app
        if command.after is not None:
            return command.after
        if stream is None and (command.snapshot or command.backfill):
            raise ApiError("snapshot and backfill need a stream; follow all streams with after")
        if command.snapshot and stream is not None:
            shown, last = await take_snapshot(app, stream)
            await self._send_text(b'{"op":"snapshot","id":%b,"record":%b}' % (msgspec.json.encode(command.id), shown))
            return last
        if command.backfill and stream is not None:
            return await find_backfill(app, stream, command.backfill)
        return reader.cursor

    async def _send_batch(self, id: str, batch: Sequence[LiveEvent] | None, wanted: EventFilter) -> None:
        if batch is None:
            await self._send({"op": "heartbeat", "id": id})
            return
        head = b'{"sub":%b,"cursor":' % msgspec.json.encode(id)
        last_sent: LiveEvent | None = None
        for live in await wanted.select(batch):
            if (body := self._encode(live)) is not None:
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

    async def _start_call(self, command: Command) -> None:
        try:
            self._check_calls()
            path, _, query = command.path.partition("?")
            path = unquote(path)
            endpoint, path_params = self._services.router.find(command.method.upper(), path)
            body = encode_body(command, endpoint.body_media)
        except PenstockError as problem:
            await self._reply_error(command.id, problem)
            return
        # The message itself is not kept: decoded, a body can be many times as large.
        query_params = QueryParams(query)
        calling = self._call(command.id, endpoint, path, path_params, query_params, body)
        task = asyncio.create_task(calling)
        self._calls.add(task)
        self._call_bytes += len(body)
        task.add_done_callback(lambda done: self._forget_call(done, len(body)))

    def _check_calls(self) -> None:
        if len(self._calls) >= MAX_CALLS:
            raise TooManyRequests(f"{MAX_CALLS} calls of this connection have no reply yet; wait for one of them")
        if self._call_bytes >= MAX_CALL_BYTES:
            raise TooManyRequests(
                f"the calls of this connection that have no reply yet have {self._call_bytes:,} bytes; wait for one"
            )

    def _forget_call(self, task: asyncio.Task[None], size: int) -> None:
        self._calls.discard(task)
        self._call_bytes -= size

    async def _call(
        self, id: str, endpoint: Endpoint, path: str, path_params: dict[str, str], query: QueryParams, body: bytes
    ) -> None:
        """Call an endpoint and reply, whatever happens."""
        try:
            caller = await self._admission.check()
            check_role(endpoint, caller)
            if endpoint.is_stream:
                raise ApiError("this path is an event stream; use the op subscribe")
            call = Call(caller, self._websocket, self._services, endpoint.method, path, query, body)
            await self._reply_to(id, endpoint, call, path_params)
        except PenstockError as problem:
            await self._reply_error(id, problem)
        except TimeoutError:
            self._drop()
        except (WebSocketDisconnect, RuntimeError):
            pass

    async def _reply_to(self, id: str, endpoint: Endpoint, call: Call, path_params: dict[str, str]) -> None:
        async with AsyncExitStack() as stack:
            try:
                response = await call_endpoint(endpoint, call, path_params)
                if isinstance(response, StreamingResponse):
                    await stack.enter_async_context(self._exporting)
                status, body = response.status_code, await read_answer(response)
            except PenstockError:
                raise
            except Exception as problem:  # a bug: it is logged, and the caller has a reply
                log.error("%s %s failed over a socket", endpoint.method, endpoint.path, exc_info=problem)
                status, body = 500, internal_error()
            await self._reply(id, status, body)

    async def _reply_error(self, id: str, problem: PenstockError) -> None:
        await self._reply(id, status_of(problem), error_object(self._services, problem))

    async def _reply(self, id: str, status: int, body: Any) -> None:
        message = b'{"op":"reply","id":%b,"status":%d,"body":%b}'
        await self._send_text(message % (msgspec.json.encode(id), status, msgspec.json.encode(body)))

    async def _send_error(self, id: str, problem: PenstockError) -> None:
        await self._send({"op": "error", "id": id, **error_object(self._services, problem)})

    async def _refuse(self, reason: str) -> None:
        """Close the connection of a caller that may no longer call, whether it reads or not."""
        if (drop := self._find_drop()) is not None:
            drop(POLICY_VIOLATION, close_reason(reason))
        else:
            await self._websocket.close(POLICY_VIOLATION, close_reason(reason))

    def _drop(self) -> None:
        """Close the connection of a client that does not read; a close that waits for it would wait for ever."""
        if (drop := self._find_drop()) is not None:
            drop(TRY_AGAIN_LATER, STALL_REASON)

    def _find_drop(self) -> Callable[[int, str], None] | None:
        found: Callable[[int, str], None] | None = self._websocket.scope.get("extensions", {}).get(DROP)
        return found

    async def _send(self, message: dict[str, Any]) -> None:
        await self._send_text(msgspec.json.encode(message))

    async def _send_text(self, message: bytes) -> None:
        async with self._sending, asyncio.timeout(STALL_TIMEOUT_S):
            await self._websocket.send_text(message.decode())
