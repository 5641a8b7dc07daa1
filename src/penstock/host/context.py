"""`ctx` in a child process: the classes that handlers know, over frames."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Coroutine, Mapping
from types import SimpleNamespace
from typing import Any

import msgspec

from ..context.blobs import SyncBlobView
from ..context.context import Context
from ..context.launch_requests import JobLaunch, RunLaunch
from ..context.state import DONE, AlreadyDone, Key, StatePage, SyncStateView, join_key
from ..context.sync_context import BranchCalls, SyncContext, SyncWaits
from ..core.argument_checks import check_count
from ..core.clock import datetime_to_ms
from ..core.durations import Duration
from ..core.errors import BadArgument, ConcurrentDurableCall, ContextClosed
from ..core.event_tags import check_event_tags
from ..core.payload import pack, to_plain
from ..core.retry import RetryOption, RetryPolicy
from ..core.text import shorten
from ..durable.calls import check_run_arguments, require_name_and_function
from ..ports import frames
from ..ports.runner import Task
from .blobs import HostBlobs, HostSyncBlobs, block_on
from .calls import Attempt, HostCall, HostCalls, HostChildCalls, HostWaits, to_span


class HostChannel:
    """What is behind a `ctx` of this process (see context.context.AttemptChannel)."""

    def __init__(self, task: Task, attempt: Attempt, find_queue: Callable[[Any], tuple[str, str | None]]) -> None:
        self._task = task
        self._attempt = attempt
        self._find_queue = find_queue
        self.is_over = False
        self.session: Any = SimpleNamespace(
            calls=HostCalls(attempt),
            waits=HostWaits(attempt),
            child_calls=HostChildCalls(attempt, self._find_flow),
        )

    @property
    def is_stopped(self) -> bool:
        return self._attempt.stop is not None

    def check(self) -> None:
        if self.is_over:
            raise ContextClosed(
                f"attempt {self._task.attempt} of {self._task.job} is over, so its ctx can no longer record anything; "
                "await or join everything a handler starts"
            )

    @property
    def blobs(self) -> Any:
        return HostBlobs(self, self._attempt)

    def state_view(self, prefix: str) -> Any:
        return HostState(self, self._attempt, is_shared=prefix == "shared/")

    async def list_children(self) -> Any:
        raise AssertionError("HostContext asks the worker")

    async def remove_job(self, _id: str) -> bool:
        raise AssertionError("HostContext asks the worker")

    def send(self, frame: frames.Notice) -> None:
        self._attempt.wire.send(frame)

    def bind_thread(self) -> None:
        """A `def` handler has the main thread."""

    def emit(self, kind: str, data: Any, correlation_id: str | None, tags: Any = None) -> None:
        self._attempt.note_caller()
        raw = msgspec.Raw(pack(data, f"the data of {kind}"))
        self.send(frames.Emit(kind, raw, correlation_id, check_event_tags(tags)))

    def log(self, level: str, message: str, fields: Mapping[str, Any]) -> None:
        self.send(frames.Log(message, level, {str(key): _shown(value) for key, value in fields.items()}))

    def progress(self, value: Any) -> None:
        self.send(frames.Progress(msgspec.Raw(pack(value, "progress"))))

    def partial(self, chunk: Any) -> None:
        self.send(frames.Partial(msgspec.Raw(pack(chunk, "partial"))))

    def launch(self, launch: JobLaunch | RunLaunch) -> str:
        at_ms = datetime_to_ms(launch.at) if launch.at is not None else None
        input, delay_ms = to_plain(launch.input, "the input"), to_span(launch.delay)
        if isinstance(launch, RunLaunch):
            tags = dict(launch.tags) if launch.tags is not None else None
            request: frames.Request = frames.StartRun(
                self._find_flow(launch.flow), input, launch.key, delay_ms, launch.priority, launch.correlation_id, tags,
                at_ms,
            )  # fmt: skip
        else:
            queue, name = (launch.queue, launch.name) if isinstance(launch.queue, str) else self._find(launch)
            retry = None if launch.retry is None else msgspec.to_builtins(RetryPolicy.parse(launch.retry))
            request = frames.EnqueueJob(
                queue, input, launch.key, name, delay_ms, launch.priority, retry, launch.correlation_id,
                launch.order_key, at_ms,
            )  # fmt: skip
        return str(self._attempt.request(request))

    def _find(self, launch: JobLaunch) -> tuple[str, str | None]:
        queue, name = self._find_queue(launch.queue)
        return queue, launch.name or name

    def _find_flow(self, flow: Any) -> str:
        return flow if isinstance(flow, str) else self._find_queue(flow)[1] or ""


def _shown(value: Any) -> Any:
    """Return a field of a log line with a JSON form, or its text."""
    try:
        return to_plain(value)
    except Exception:
        return shorten(value)


class HostState:
    """`ctx.state` and `ctx.shared`."""

    def __init__(self, channel: HostChannel, attempt: Attempt, is_shared: bool) -> None:
        self._channel = channel
        self._attempt = attempt
        self._shared = is_shared

    async def get(self, key: Key, default: Any = None) -> Any:
        found = await self._attempt.ask(frames.StateGet(join_key(key), self._shared))
        return found["value"] if found["found"] else default

    def set(self, key: Key, value: Any, *, ttl: Duration | None = None) -> AlreadyDone:
        self._channel.check()
        self._attempt.note_caller()
        text = join_key(key)
        packed = msgspec.Raw(pack(value, f"the value of state {text!r}"))
        self._channel.send(frames.StateSet(text, packed, to_span(ttl), self._shared))
        return DONE

    def delete(self, key: Key) -> AlreadyDone:
        self._channel.check()
        self._attempt.note_caller()
        self._channel.send(frames.StateDelete(join_key(key), self._shared))
        return DONE

    async def list(self, prefix: Key = "", *, after: Key | None = None, limit: int = 100) -> StatePage:
        check_count(limit)
        start, last = join_key(prefix) if prefix else "", join_key(after) if after is not None else None
        found = await self._attempt.ask(frames.StateList(start, limit + 1, self._shared, last))
        page = StatePage(dict(list(found.items())[:limit]))
        page.next = list(page)[-1] if len(found) > limit else None
        return page

    async def patch(
        self, key: Key, change: Callable[[Any], Any], *, ttl: Duration | None = None, name: str | None = None
    ) -> Any:
        self._channel.check()
        if not callable(change):
            raise BadArgument(
                "the second argument of state.patch must be a function that takes the old value and returns the new "
                f"one, got {shorten(change)}"
            )
        inbox: queue.SimpleQueue[Any] | None = queue.SimpleQueue() if self._attempt.loop is None else None
        number = self._attempt.add_function("state.patch", change, inbox)
        return await self._attempt.ask(frames.StatePatch(join_key(key), number, to_span(ttl), name, self._shared))


class HostContext(Context):
    """`ctx` of an `async def` handler."""

    _channel: HostChannel

    @classmethod
    def make(cls, task: Task, channel: HostChannel) -> HostContext:
        ctx = cls(
            channel=channel,
            job_id=task.job,
            queue=task.queue,
            attempt=task.attempt,
            scope=task.scope,
            run_id=task.run,
            flow=task.flow,
            step=task.step,
            n=task.n,
            correlation_id=task.correlation_id,
        )
        ctx.awaited = task.awaited
        return ctx

    async def children_values(self) -> dict[str, Any]:
        return await self._children("values")  # type: ignore[no-any-return]

    async def failed_children(self) -> dict[str, str]:
        return await self._children("failed")  # type: ignore[no-any-return]

    async def remove_children(self) -> int:
        return await self._children("remove")  # type: ignore[no-any-return]

    async def _children(self, what: Any) -> Any:
        self._channel.check()
        return await self._channel._attempt.ask(frames.Children(what))


class _HostSyncState(SyncStateView):
    def _wait(self, work: Any) -> Any:
        return block_on(work)


class _HostBranches(BranchCalls):
    @require_name_and_function
    def run(self, name: str, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> HostCall:  # type: ignore[override]
        check_run_arguments(name, fn)
        calls: Any = self._ctx.calls
        call: HostCall = calls.run_on_thread(name, lambda _: fn(*args, **kwargs))
        return call


class HostSyncContext(SyncContext):
    """`ctx` of a `def` handler. It runs on the main thread, which has no event loop."""

    def __init__(self, inner: HostContext) -> None:
        super().__init__(inner, None)  # type: ignore[arg-type]
        self.state = _HostSyncState(inner.state, None)  # type: ignore[arg-type]
        self.shared = _HostSyncState(inner.shared, None)  # type: ignore[arg-type]
        self.awaited = inner.awaited

    @property
    def blob(self) -> SyncBlobView:
        return HostSyncBlobs(self._inner.blob, None)  # type: ignore[arg-type]

    @require_name_and_function
    def run(
        self,
        name: str,
        fn: Callable[..., Any],
        *args: Any,
        retry: RetryOption | None = None,
        timeout: None = None,
        **kwargs: Any,
    ) -> Any:
        if timeout is not None:
            raise BadArgument(
                f"ctx.run({name!r}) cannot use timeout={shorten(timeout)} in a `def` handler, because a running thread "
                "cannot be stopped. Set a timeout inside the function, or make the handler async"
            )
        calls: Any = self._calls
        return block_on(calls.run(name, fn, args, kwargs, retry, None).ask())

    @property
    def wait(self) -> SyncWaits:
        return SyncWaits(self._inner.wait, self._calls, self._block_on_wait)

    @property
    def branch(self) -> BranchCalls:
        return _HostBranches(self._inner)

    def _block_on(self, call: Coroutine[Any, Any, Any]) -> Any:
        return block_on(call)

    def _block_on_wait(self, call: Coroutine[Any, Any, Any]) -> Any:
        if threading.current_thread() is not threading.main_thread():
            call.close()
            raise ConcurrentDurableCall(
                "ctx.wait was called on a thread that the handler started. Call it on the handler's own thread; to "
                "wait for several things at once, use ctx.all or ctx.first, or make the handler `async def`"
            )
        return block_on(call)
