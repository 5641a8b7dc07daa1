"""Serves the `ctx` calls of a handler in another process, on a `ctx` of this one."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import msgspec

from ..context.context import Context
from ..core.clock import datetime_to_ms
from ..core.durations import ms_to_duration
from ..core.events import Event
from ..durable.calls import DurableCall
from ..durable.session import DurableSession
from ..durable.trigger_waits import Trigger
from ..ports.frames import (
    AwaitAll,
    AwaitCall,
    AwaitFirst,
    BlobClose,
    BlobDelete,
    BlobInfo,
    BlobPut,
    BlobRead,
    BlobUrl,
    Blocked,
    CallRun,
    Children,
    Concurrent,
    DurableCallFrame,
    Emit,
    EnqueueJob,
    Log,
    NewTrigger,
    Notice,
    Partial,
    Progress,
    RecordedValue,
    Request,
    RunFunction,
    StartRun,
    StateDelete,
    StateGet,
    StateList,
    StatePatch,
    StateSet,
    TriggerToken,
    WaitEvent,
    WaitTime,
    WaitTrigger,
)
from ..ports.runner import Execute
from .remote_blobs import RemoteBlobs

_MISSING = object()
# Requests that are no durable calls: nothing else says that the handler is about to go on.
_PLAIN = (StateGet, StateList, Children, BlobPut, BlobRead, BlobInfo, BlobDelete, BlobUrl)


class RemoteCalls:
    """The calls of one remote attempt. Journal, waits and state stay in the worker; the host executes functions."""

    def __init__(self, ctx: Context, session: DurableSession) -> None:
        self._ctx = ctx
        self._session = session
        self._triggers: dict[str, Trigger] = {}
        self._blobs = RemoteBlobs(ctx)
        self._has_branched = False

    def post(self, frame: Notice) -> None:
        """Do what needs no answer."""
        ctx = self._ctx
        match frame:
            case Emit(kind, data, correlation_id, tags):
                ctx.emit({"kind": kind, "data": data, "correlationId": correlation_id, "tags": tags})
            case Log(message, level, fields):
                ctx.log(message, level, **fields)
            case Progress(value):
                ctx.progress(value)
            case Partial(chunk):
                ctx.partial(chunk)
            case StateSet(key, value, ttl_ms, shared):
                self._state(shared).set(key, value, ttl=_span(ttl_ms))
            case StateDelete(key, shared):
                self._state(shared).delete(key)
            case Concurrent():
                self._session.journal.is_concurrent = True
            case BlobClose(read):
                self._blobs.close(read)
            case Blocked():
                self._session.calls.branches.set_host_blocked(True)

    async def answer(
        self, request: Request, execute: Execute, site: str | None, is_branch: bool = False, is_loose: bool = False
    ) -> Any:
        """Answer a request. While it is answered, and until the host says otherwise, other branches may go on."""
        if is_loose:
            self._session.journal.break_chain()
        branches = self._session.calls.branches
        if is_branch:
            self._has_branched = True
            branches.set_host_blocked(False)
        elif self._has_branched:  # no branch is left, so the host will not say that all of them are blocked
            branches.host_is_blocked = None
        is_plain = isinstance(request, _PLAIN)
        branches.active += is_plain
        try:
            return await self._answer(request, execute, site)
        finally:
            if is_plain:
                branches.finish_call()
            if branches.host_is_blocked is not None:
                branches.set_host_blocked(False)

    async def _answer(self, request: Request, execute: Execute, site: str | None) -> Any:
        ctx = self._ctx
        match request:
            case StateGet(key, shared):
                value = await self._state(shared).get(key, _MISSING)
                return {"found": False, "value": None} if value is _MISSING else {"found": True, "value": value}
            case StateList(prefix, limit, shared, after):
                return await self._state(shared).list(prefix, after=after, limit=limit)
            case StatePatch(key, function, ttl_ms, name, shared):
                change = _function(execute, function)
                return await self._state(shared).patch(key, change, ttl=_span(ttl_ms), name=name)
            case AwaitCall(call):
                return await self._call(call, execute, site)
            case AwaitAll(calls):
                return await ctx.all([self._call(call, execute, site) for call in calls])
            case AwaitFirst(calls, name):
                return await ctx.first({key: self._call(call, execute, site) for key, call in calls.items()}, name=name)
            case NewTrigger():
                return await self._new_trigger(request, site)
            case TriggerToken(id):
                trigger = self._triggers[id]
                return {"token": trigger.token, "url": trigger.url}
            case RecordedValue(of):
                return datetime_to_ms(ctx.now()) if of == "now" else ctx.uuid() if of == "uuid" else ctx.random()
            case Children(what):
                return await self._children(what)
            case EnqueueJob(queue, input, key, name, delay_ms, priority, retry, correlation_id, order_key, at_ms):
                id = ctx.enqueue(
                    queue, input, key=key, name=name, delay=_span(delay_ms), at=_moment(at_ms), priority=priority,
                    retry=retry, correlation_id=correlation_id, order_key=order_key,
                )  # fmt: skip
                return str(id)
            case StartRun(flow, input, key, delay_ms, priority, correlation_id, tags, at_ms):
                id = ctx.start(
                    flow, input, key=key, delay=_span(delay_ms), at=_moment(at_ms), priority=priority,
                    correlation_id=correlation_id, tags=tags,
                )  # fmt: skip
                return str(id)
            case BlobPut() | BlobRead() | BlobInfo() | BlobDelete() | BlobUrl():
                return await self._blobs.answer(request, execute)

    async def _children(self, what: str) -> Any:
        if what == "values":
            return await self._ctx.children_values()
        return await (self._ctx.failed_children() if what == "failed" else self._ctx.remove_children())

    async def _new_trigger(self, request: NewTrigger, site: str | None) -> dict[str, str]:
        self._session.journal.remote_site = _read_site(site)
        trigger = await self._ctx.wait.trigger(
            request.name,
            type=request.kind,
            timeout=_span(request.timeout_ms),
            payload=request.payload,
            schema=request.schema,
            signed=request.signed,
            signed_id=request.signed_id,
        )
        self._triggers[trigger.id] = trigger
        return {"id": trigger.id, "name": trigger.name}

    def _call(self, call: DurableCallFrame, execute: Execute, site: str | None) -> DurableCall[Any]:
        self._session.journal.remote_site = _read_site(site)
        match call:
            case RunFunction(name, function, retry, timeout_ms):
                run = _function(execute, function)
                return self._ctx.run(name, run, None, retry=retry, timeout=_span(timeout_ms))
            case WaitTime(delay_ms, until_ms, name):
                return self._ctx.wait.time(_moment(until_ms) or _span(delay_ms or 0), name=name)
            case WaitEvent(kind, match, timeout_ms, name, past, function):
                where = None if function is None else _accepting(_function(execute, function))
                span = _span(timeout_ms)
                return self._ctx.wait.event(kind, match=match, where=where, timeout=span, name=name, past=past)
            case WaitTrigger(trigger):
                return self._triggers[trigger].wait()
            case CallRun():
                return self._call_run(call)

    def _call_run(self, call: CallRun) -> DurableCall[Any]:
        options: dict[str, Any] = {
            "timeout": _span(call.timeout_ms),
            "on_failure": call.on_failure,
            "on_timeout": call.on_timeout,
            "name": call.name,
            "priority": call.priority,
            "correlation_id": call.correlation_id,
            "tags": call.tags,
        }
        if call.many:
            return self._ctx.call_many(call.flow, call.input, **options)
        return self._ctx.call(call.flow, call.input, key=call.key, **options)

    def _state(self, shared: bool) -> Any:
        return self._ctx.shared if shared else self._ctx.state


def _function(execute: Execute, number: int) -> Callable[[Any], Any]:
    """Return the host's function as a coroutine function of this process."""

    def call(value: Any = None) -> Any:
        return execute(number, value)

    return call


def _accepting(function: Callable[[Any], Any]) -> Callable[[Event], Any]:
    """Return a function of an event that the host executes with the event as JSON."""
    return lambda event: function(msgspec.to_builtins(event))


def _span(ms: int | None) -> Any:
    return None if ms is None else ms_to_duration(ms)


def _moment(ms: int | None) -> datetime | None:
    return None if ms is None else datetime.fromtimestamp(ms / 1000, UTC)


def _read_site(site: str | None) -> tuple[str, int] | None:
    file, _, line = (site or "").rpartition(":")
    return (file, int(line)) if line.isdigit() else None
