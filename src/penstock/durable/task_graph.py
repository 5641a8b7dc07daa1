"""What the tasks of a handler wait for: each other, a parked durable wait, or something else.

A task is blocked if it waits for a parked durable wait, or for blocked tasks: with `await`, `asyncio.gather`,
`asyncio.wait`, `asyncio.shield`, a task group, or a lock, an event or a queue that another branch must release. A task
that waits for anything else, such as `asyncio.sleep` or a request, is busy: the handler goes on without a durable call.
"""

from __future__ import annotations

import asyncio
import sys
import sysconfig
from collections.abc import Collection, Iterable
from enum import Enum
from types import FrameType
from typing import Any

from ..core.task_ready import TaskReady

_PACKAGES = tuple({sysconfig.get_path("purelib"), sysconfig.get_path("platlib")})
_SHARED = ("asyncio.locks", "asyncio.queues")  # what branches use to wait for each other
_ANYIO_SHARED = ("Event", "Lock", "Condition", "Semaphore", "CapacityLimiter")


class Activity(Enum):
    """What the tasks of a handler do."""

    RUNNABLE = "a task is about to run"
    BUSY = "a task waits for something that is no durable call"
    BLOCKED = "every task waits for a durable wait, or for another task"


def find_activity(tasks: Iterable[asyncio.Task[Any]], parked: Collection[asyncio.Future[Any]]) -> Activity:
    """Return what these tasks, and the tasks they wait for, do. `parked` are the futures of durable waits."""
    pending, seen, found = list(tasks), set[Any](), Activity.BLOCKED
    known = list(pending)
    while pending:
        task = pending.pop()
        if task in seen or task.done():
            continue
        seen.add(task)
        waiter = getattr(task, "_fut_waiter", None)
        if waiter is None or waiter.done():
            return Activity.RUNNABLE
        if waiter in parked:
            continue
        awaited = _awaited_tasks(task, waiter, known)
        if awaited is None:
            found = Activity.BUSY
            continue
        for one in awaited:
            if isinstance(one, asyncio.Task):
                pending.append(one)
            elif one.done():
                return Activity.RUNNABLE
            elif one not in parked:
                found = Activity.BUSY
    return found


def _awaited_tasks(
    task: asyncio.Task[Any], waiter: asyncio.Future[Any], known: Iterable[asyncio.Task[Any]]
) -> list[asyncio.Future[Any]] | None:
    """Return what a task waits for, as far as it is tasks and futures; None if it is something else."""
    if isinstance(waiter, asyncio.Task):
        return [waiter]
    children = getattr(waiter, "_children", None)  # asyncio.gather
    if isinstance(children, list):
        return [child for child in children if not child.done()]
    frames = _frames(task)
    if frames:
        awaited = _read_frame(frames)
        if awaited is not None:
            return awaited
    return _find_shielded(waiter, known)


def _frames(task: asyncio.Task[Any]) -> list[FrameType]:
    """Return the frames of a suspended task, innermost last."""
    frames: list[FrameType] = []
    coro: Any = task.get_coro()
    if isinstance(coro, TaskReady):
        coro = coro.find_running(task)
    while coro is not None:
        frame = getattr(coro, "cr_frame", None) or getattr(coro, "gi_frame", None) or getattr(coro, "ag_frame", None)
        if frame is None:
            break
        frames.append(frame)
        coro = getattr(coro, "cr_await", None) or getattr(coro, "gi_yieldfrom", None) or getattr(coro, "ag_await", None)
    return frames


def _read_frame(frames: list[FrameType]) -> list[asyncio.Future[Any]] | None:
    """Return what asyncio's own code, innermost, waits for; None if it is not known to wait for tasks."""
    frame = frames[-1]
    module, owner = frame.f_globals.get("__name__", ""), frame.f_locals.get("self")
    if module == "asyncio.tasks" and frame.f_code.co_name == "_wait":
        return [one for one in frame.f_locals["fs"] if not one.done()]
    if module == "asyncio.tasks" and frame.f_code.co_name == "wait_for":
        fut = frame.f_locals.get("fut")
        return [fut] if isinstance(fut, asyncio.Future) else None
    if isinstance(owner, asyncio.TaskGroup) or (module.startswith("anyio.") and type(owner).__name__ == "TaskGroup"):
        return list(getattr(owner, "_tasks", ()))
    if module in _SHARED and _is_shared_by_branches(frames):
        return []
    return None


def _is_shared_by_branches(frames: list[FrameType]) -> bool:
    """Return whether a lock, an event or a queue belongs to the handler's own code, not to a client library."""
    for frame in reversed(frames):
        module = frame.f_globals.get("__name__", "")
        if module in _SHARED:
            continue
        if module.startswith("anyio."):
            return type(frame.f_locals.get("self")).__name__ in _ANYIO_SHARED
        return not frame.f_code.co_filename.startswith(_PACKAGES) and module.partition(".")[0] not in _STANDARD
    return False


_STANDARD = frozenset(sys.stdlib_module_names)


def _find_shielded(waiter: asyncio.Future[Any], known: Iterable[asyncio.Task[Any]]) -> list[asyncio.Future[Any]] | None:
    """Return the task whose end resolves this future: that of an `asyncio.shield`."""
    for task in known:
        for callback, _ in getattr(task, "_callbacks", None) or ():
            cells = getattr(callback, "__closure__", None) or ()
            if any(_content(cell) is waiter for cell in cells):
                return [task]
    return None


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # it is empty
        return None
