"""The child of `ProcessRunner`: reads a task, calls the handler, and sends what it does as frames."""

from __future__ import annotations

import asyncio
import importlib.util
import itertools
import os
import sys
import threading
import traceback
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import Future
from datetime import UTC, datetime
from typing import Any

import msgspec

from penstock.core import errors
from penstock.core.durations import Duration, to_ms
from penstock.core.errors import PenstockError, RateLimited, Retry
from penstock.core.events import Event
from penstock.core.payload import to_plain
from penstock.handlers.decorators import read_definitions
from penstock.handlers.handler import make_handler
from penstock.ports import frames
from penstock.ports.frames import decode_worker_frame, encode_frame
from penstock.ports.runner import Task


class Wire:
    """The two pipes. A thread reads answers, so that even a call that cannot be awaited gets one."""

    def __init__(self, into: int, out: int) -> None:
        self._into = os.fdopen(into, "rb")
        self._out = os.fdopen(out, "wb", buffering=0)
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)
        self._answers: dict[int, Future[Any]] = {}
        self.functions: dict[int, Callable[..., Any]] = {}
        self.on_execute: Callable[[frames.Execute], None] = lambda _: None
        self.on_cancel: Callable[[], None] = lambda: None

    def send(self, frame: frames.HandlerFrame) -> None:
        with self._lock:
            self._out.write(encode_frame(frame) + b"\n")

    def read(self) -> frames.WorkerFrame | None:
        line = self._into.readline()
        return decode_worker_frame(line) if line else None

    def call(self, request: frames.Request, site: str | None = None) -> Future[Any]:
        number, future = next(self._numbers), Future[Any]()
        self._answers[number] = future
        self.send(frames.Call(number, request, site))
        return future

    def number_of(self, fn: Callable[..., Any]) -> int:
        number = next(self._numbers)
        self.functions[number] = fn
        return number

    def serve(self) -> None:
        """Take frames until the worker is gone."""
        while (frame := self.read()) is not None:
            match frame:
                case frames.Answer(id, value, error):
                    future = self._answers.pop(id)
                    if error is None:
                        future.set_result(value)
                    else:
                        future.set_exception(raised(error, id))
                case frames.Execute():
                    self.on_execute(frame)
                case frames.Cancel():
                    self.on_cancel()
                case frames.Suspend():
                    os._exit(0)
        self.on_cancel()


def raised(error: frames.ErrorFrame, answer: int) -> BaseException:
    """Return the exception of an answer; it remembers which answer it was."""
    kind = getattr(errors, error.name, None)
    problem: BaseException = RuntimeError(error.message)
    if isinstance(kind, type) and issubclass(kind, PenstockError):
        problem = kind.__new__(kind)
        problem.args = (error.message,)
    problem.__dict__["answer"] = answer
    return problem


def described(problem: BaseException) -> frames.ErrorFrame:
    """Return an exception as a frame, with its stack in the handler's file."""
    after = getattr(problem, "after", None) if isinstance(problem, Retry | RateLimited) else None
    code, stack = getattr(problem, "code", None), traceback.extract_tb(problem.__traceback__)
    lines = traceback.format_list([frame for frame in stack if frame.filename != __file__])
    return frames.ErrorFrame(
        type(problem).__name__,
        str(problem),
        [cls.__name__ for cls in type(problem).__mro__[1:] if cls not in (object, BaseException, Exception)],
        str(code) if code is not None else None,
        "".join(lines) or None,
        to_ms(after) if after is not None else None,
        getattr(problem, "retriable", None),
        getattr(problem, "answer", None),
    )


class HostCall:
    """A durable call that is not awaited yet."""

    def __init__(self, wire: Wire, frame: frames.DurableCallFrame, site: str) -> None:
        self.frame = frame
        self._wire = wire
        self._site = site

    def __await__(self) -> Generator[Any, None, Any]:
        return self._ask().__await__()

    async def _ask(self) -> Any:
        value = await asyncio.wrap_future(self._wire.call(frames.AwaitCall(self.frame), self._site))
        return msgspec.convert(value, Event) if isinstance(self.frame, frames.WaitEvent) else value


class HostState:
    """`ctx.state` and `ctx.shared`."""

    def __init__(self, wire: Wire, shared: bool) -> None:
        self._wire = wire
        self._shared = shared

    async def get(self, key: str, default: Any = None) -> Any:
        found = await asyncio.wrap_future(self._wire.call(frames.StateGet(key, self._shared)))
        return found["value"] if found["found"] else default

    def set(self, key: str, value: Any, *, ttl: Duration | None = None) -> None:
        self._wire.send(frames.StateSet(key, value, span(ttl), self._shared))

    def delete(self, key: str) -> None:
        self._wire.send(frames.StateDelete(key, self._shared))

    async def list(self, prefix: str = "", *, limit: int = 100) -> Any:
        return await asyncio.wrap_future(self._wire.call(frames.StateList(prefix, limit, self._shared)))

    async def patch(self, key: str, change: Callable[[Any], Any]) -> Any:
        request = frames.StatePatch(key, self._wire.number_of(change), shared=self._shared)
        return await asyncio.wrap_future(self._wire.call(request))


class HostTrigger:
    def __init__(self, wire: Wire, id: str) -> None:
        self._wire = wire
        self.id = id

    @property
    def token(self) -> str:
        return str(self._wire.call(frames.TriggerToken(self.id)).result()["token"])

    @property
    def url(self) -> str:
        return str(self._wire.call(frames.TriggerToken(self.id)).result()["url"])

    def wait(self) -> HostCall:
        return HostCall(self._wire, frames.WaitTrigger(self.id), here())


class HostWaits:
    """`ctx.wait`."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    def time(self, delay: Duration, *, name: str = "time") -> HostCall:
        return HostCall(self._wire, frames.WaitTime(to_ms(delay), name=name), here())

    def event(
        self,
        kind: str,
        *,
        match: Mapping[str, Any] | None = None,
        timeout: Duration | None = None,
        name: str | None = None,
    ) -> HostCall:
        pattern = dict(match) if match is not None else None
        return HostCall(self._wire, frames.WaitEvent(kind, pattern, span(timeout), name), here())

    async def trigger(self, name: str, *, timeout: Duration | None = None) -> HostTrigger:
        call = self._wire.call(frames.NewTrigger(name, timeout_ms=span(timeout)), here())
        return HostTrigger(self._wire, (await asyncio.wrap_future(call))["id"])


class HostLog:
    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    def __call__(self, message: str, level: str = "info", **fields: Any) -> None:
        self._wire.send(frames.Log(message, level, fields))

    def warning(self, message: str, **fields: Any) -> None:
        self(message, "warning", **fields)


class HostContext:
    """`ctx` of an `async def` handler."""

    def __init__(self, task: Task, wire: Wire) -> None:
        self._wire = wire
        self._scope = task.scope
        self.run_id, self.flow, self.step, self.job_id = task.run, task.flow, task.step, task.job
        self.queue, self.attempt, self.n, self.correlation_id = task.queue, task.attempt, task.n, task.correlation_id
        self.awaited, self.cancelled = task.awaited, False
        self.state, self.shared = HostState(wire, False), HostState(wire, True)
        self.wait, self.log = HostWaits(wire), HostLog(wire)

    def emit(self, kind: str, data: Any = None) -> None:
        self._wire.send(frames.Emit(kind, to_plain(data)))

    def enqueue(self, queue: Any, input: Any = None, **options: Any) -> str:
        if not isinstance(queue, str):
            handler = read_definitions(queue)[0].handler
            queue, options = handler.queue_name, {"name": handler.name, **options}
        request = frames.EnqueueJob(queue, to_plain(input), delay_ms=span(options.pop("delay", None)), **options)
        return str(self._wire.call(request).result())

    def start(self, flow: Any, input: Any = None, **options: Any) -> str:
        name = flow if isinstance(flow, str) else read_definitions(flow)[0].name
        request = frames.StartRun(name, to_plain(input), delay_ms=span(options.pop("delay", None)), **options)
        return str(self._wire.call(request).result())

    def progress(self, value: Any) -> None:
        self._wire.send(frames.Progress(value))

    def partial(self, chunk: Any) -> None:
        self._wire.send(frames.Partial(chunk))

    def idempotency_key(self, name: str = "") -> str:
        return f"{self._scope}.{name}" if name else self._scope

    def run(self, name: str, fn: Callable[..., Any], *args: Any, retry: Any = None) -> HostCall:
        number = self._wire.number_of(lambda _: fn(*args))
        return HostCall(self._wire, frames.RunFunction(name, number, retry), here())

    async def all(self, calls: Sequence[HostCall]) -> Any:
        return await asyncio.wrap_future(self._wire.call(frames.AwaitAll([call.frame for call in calls]), here()))

    async def first(self, calls: Mapping[str, HostCall], *, name: str = "first") -> Any:
        request = frames.AwaitFirst({key: call.frame for key, call in calls.items()}, name)
        return await asyncio.wrap_future(self._wire.call(request, here()))

    def now(self) -> datetime:
        return datetime.fromtimestamp(self._value("now") / 1000, UTC)

    def uuid(self) -> str:
        return str(self._value("uuid"))

    def random(self) -> float:
        return float(self._value("random"))

    def _value(self, of: Any) -> Any:
        return self._wire.call(frames.RecordedValue(of)).result()

    async def children_values(self) -> Any:
        return await asyncio.wrap_future(self._wire.call(frames.Children("values")))


def here() -> str:
    """Return the line of the handler that makes a call."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename == __file__:
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def span(value: Duration | None) -> int | None:
    return None if value is None else to_ms(value)


def find(file: str, function: str) -> Callable[..., Any]:
    """Import the handler's function from its file."""
    spec = importlib.util.spec_from_file_location("penstock_task", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["penstock_task"] = module
    spec.loader.exec_module(module)
    return getattr(module, function)  # type: ignore[no-any-return]


async def main(wire: Wire) -> None:
    first = wire.read()
    assert isinstance(first, frames.Run)
    task = msgspec.json.decode(first.task, type=Task)
    loop, current = asyncio.get_running_loop(), asyncio.current_task()
    assert current is not None

    async def execute(frame: frames.Execute) -> None:
        try:
            value = wire.functions[frame.function](frame.value)
            wire.send(frames.Executed(frame.id, await value if asyncio.iscoroutine(value) else value))
        except Exception as problem:
            wire.send(frames.Executed(frame.id, error=described(problem)))

    running: set[asyncio.Task[None]] = set()

    def start(frame: frames.Execute) -> None:
        running.add(loop.create_task(execute(frame)))

    wire.on_execute = lambda frame: loop.call_soon_threadsafe(start, frame)  # type: ignore[assignment,return-value]
    wire.on_cancel = lambda: loop.call_soon_threadsafe(current.cancel)  # type: ignore[assignment,return-value]
    threading.Thread(target=wire.serve, daemon=True).start()
    assert task.handler.function is not None
    try:
        handler = make_handler(find(task.handler.file, task.handler.function), task.handler.name, {})
        value = handler.check_input(msgspec.json.decode(task.input))
        result = await handler.call(value, HostContext(task, wire))  # type: ignore[arg-type]
        wire.send(frames.Done(to_plain(result, f"the result of {task.handler.name}")))
    except BaseException as problem:
        wire.send(frames.Failed(described(problem)))


if __name__ == "__main__":
    try:
        asyncio.run(main(Wire(int(sys.argv[1]), int(sys.argv[2]))))
    except (BrokenPipeError, asyncio.CancelledError):
        pass  # the worker is gone
