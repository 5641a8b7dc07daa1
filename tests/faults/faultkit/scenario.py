"""Run one scenario: a store, an App whose store calls can fail or kill it, and a check of the history at the end."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import penstock.worker.worker as worker_module
from penstock import App
from penstock.core.clock import Clock, SystemClock
from penstock.core.errors import StoreUnavailable
from penstock.ports.store import Store
from penstock.testing.faults import FaultAt, FaultInjector, FaultStore, NoFaults, When
from penstock.testing.history import Effect, History, Trigger, check, read_history

from . import virtual_time
from .backends import Backend
from .lease_renewer_task import LeaseRenewerTask

T = TypeVar("T")
LIVE_STATES = ("waiting", "delayed", "active", "suspended")


class DeathAt(FaultAt):
    """Kills the process at the k-th call of a method, before or after the store executes it."""

    def __init__(self, method: str, k: int, when: When) -> None:
        super().__init__(method, k, when)
        self.died = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    async def on_call(self, method: str, when: When) -> None:
        if not self.is_injected:
            super().on_blocking_call(method, when)
        if self.is_injected:
            await asyncio.get_running_loop().create_future()  # a dead process gets no answer

    def on_blocking_call(self, method: str, when: When) -> None:
        if not self.is_injected:
            super().on_blocking_call(method, when)
        if self.is_injected:
            raise StoreUnavailable("dead")

    def inject(self) -> None:
        self._loop.call_soon_threadsafe(self.died.set)

    def __repr__(self) -> str:
        return f"{self.method}#{self.k}-dies-{self.when}"


class Sandbox:
    """The App, store and records of one scenario."""

    def __init__(self, store: Store, clock: Clock, lease: str, triggers: dict[str, dict[str, Trigger]]) -> None:
        self.store = store  # the inner store, without faults
        self.clock = clock
        self.lease = lease
        self.effects: list[Effect] = []
        self.acknowledged: set[str] = set()
        self.counts: Counter[str] = Counter()
        self.app: App
        self._triggers = triggers

    def record(self, ctx: Any) -> None:
        """Record an execution. Handlers call this first."""
        step = ctx.step or ctx.queue
        self.effects.append(Effect(ctx.run_id or "", step, ctx.job_id, ctx.attempt, ctx.idempotency_key()))

    async def retry(self, call: Callable[[], Awaitable[T]]) -> T:
        """Repeat a call while the store is unavailable, which its error declares safe."""
        for _ in range(50):
            try:
                return await call()
            except StoreUnavailable:
                self.counts["retries"] += 1
                await asyncio.sleep(0.1)
        raise AssertionError("the store stayed unavailable")

    async def start(self, flow: str, run: str, input: Any = None) -> None:
        await self.retry(lambda: self.app.start(flow, input, key=run))
        self.acknowledged.add(run)

    async def settle(self, seconds: float = 40) -> None:
        """Wait until no job is left and all runs are closed; fail as soon as a run is stuck."""
        deadline = asyncio.get_running_loop().time() + seconds
        while True:
            stuck = await self.store.stuck_runs()
            assert not stuck, f"open runs with no job and no wait: {stuck}"
            queues = [queue for queue in await self.store.queues() if not queue.name.endswith("-dlq")]
            live = sum(queue.counts[state] for queue in queues for state in LIVE_STATES)
            if not live and all(row.closed for row in await self.store.runs(limit=1000)):
                return
            assert asyncio.get_running_loop().time() < deadline, f"{live} jobs have not ended"
            await asyncio.sleep(0.1)

    async def history(self) -> History:
        return await read_history(
            self.store, effects=self.effects, acknowledged=self.acknowledged, triggers=self._triggers
        )


class Scenario:
    """A scenario that can run again from the start after a crash: everything in it has a key."""

    name: str
    triggers: dict[str, dict[str, Trigger]] = {}
    max_crashes = 100

    def handlers(self, sandbox: Sandbox) -> list[Callable[..., Any]]:
        raise NotImplementedError

    async def drive(self, sandbox: Sandbox) -> None:
        raise NotImplementedError

    async def check(self, sandbox: Sandbox, history: History) -> None:
        """Check what holds for this scenario in particular."""


class Outcome:
    """How a scenario under one fault ended."""

    def __init__(self, problems: list[str], is_injected: bool, calls: Counter[str]) -> None:
        self.problems = problems
        self.is_injected = is_injected
        self.calls = calls


def run_scenario(scenario: Scenario, backend: Backend, folder: Path, fault: Callable[[], FaultInjector]) -> Outcome:
    """Run a scenario with a fault on a new store."""
    if not backend.has_virtual_time:
        return asyncio.run(_run(scenario, backend, folder, fault, SystemClock(), "500ms"))
    with _lease_renewer_as_task():
        return virtual_time.run(lambda: _run_virtually(scenario, backend, folder, fault))


async def _run_virtually(
    scenario: Scenario, backend: Backend, folder: Path, fault: Callable[[], FaultInjector]
) -> Outcome:
    clock = virtual_time.VirtualClock(asyncio.get_running_loop())
    return await _run(scenario, backend, folder, fault, clock, "2s")


@contextmanager
def _lease_renewer_as_task() -> Iterator[None]:
    real = worker_module.LeaseRenewer
    worker_module.LeaseRenewer = LeaseRenewerTask  # type: ignore[misc,assignment]
    try:
        yield
    finally:
        worker_module.LeaseRenewer = real  # type: ignore[misc]


async def _run(
    scenario: Scenario, backend: Backend, folder: Path, fault: Callable[[], FaultInjector], clock: Clock, lease: str
) -> Outcome:
    inner = backend.open(folder, clock)
    await inner.open()
    _stop_time_during_calls(inner)
    faults = fault()
    sandbox = Sandbox(inner, clock, lease, scenario.triggers)
    store = FaultStore(inner, faults, borrowed=True)
    problems: list[str] = []
    try:
        await _drive_with_restart(scenario, sandbox, store, faults)
        history = await sandbox.history()
        problems += [str(violation) for violation in check(history)]
        await scenario.check(sandbox, history)
    except AssertionError as problem:
        problems.append(f"{scenario.name}: {problem}")
    except Exception as problem:
        problems.append(f"{scenario.name}: {type(problem).__name__}: {problem}")
    finally:
        await _cancel_other_tasks()
        await inner.close()
    return Outcome(problems, getattr(faults, "is_injected", False), store.calls)


async def _drive_with_restart(scenario: Scenario, sandbox: Sandbox, store: FaultStore, faults: FaultInjector) -> None:
    """Drive the scenario; if its process dies, drive it again in a new one without faults."""
    died = getattr(faults, "died", None)
    driving = asyncio.create_task(_drive(scenario, sandbox, store))
    if died is None:
        await driving
        return
    death = asyncio.create_task(died.wait())
    await asyncio.wait((driving, death), return_when=asyncio.FIRST_COMPLETED)
    death.cancel()
    if not faults.is_injected:  # type: ignore[attr-defined]
        await driving
        return
    await _cancel_other_tasks()
    await _drive(scenario, sandbox, FaultStore(sandbox.store, NoFaults(), borrowed=True))


async def _drive(scenario: Scenario, sandbox: Sandbox, store: Any) -> None:
    sandbox.app = App(
        url=":memory:", handlers=scenario.handlers(sandbox), store=store, clock=sandbox.clock, lease=sandbox.lease,
        max_crashes=scenario.max_crashes, grace="1s", concurrency=4,
    )  # fmt: skip
    async with sandbox.app:
        await scenario.drive(sandbox)


def _stop_time_during_calls(store: Store) -> None:
    """Stop virtual time while a store call or a thread of ours is in progress."""
    loop = asyncio.get_running_loop()
    if not isinstance(loop, virtual_time.VirtualLoop):
        return
    counter: Any = _CallCounter(store)
    loop.selector.is_busy = lambda: loop.executing > 0 or counter.in_flight > 0


class _CallCounter:
    """Counts the calls inside a store by replacing its methods on the object."""

    def __init__(self, store: Any) -> None:
        self.in_flight = 0
        for name in dir(type(store)):
            found = getattr(store, name)
            if not name.startswith("_") and asyncio.iscoroutinefunction(found) and name not in ("open", "close"):
                setattr(store, name, self._count(found))

    def _count(self, call: Callable[..., Any]) -> Callable[..., Any]:
        async def counted(*args: Any, **kwargs: Any) -> Any:
            self.in_flight += 1
            try:
                return await call(*args, **kwargs)
            finally:
                self.in_flight -= 1

        return counted


async def _cancel_other_tasks() -> None:
    """Cancel every other task. Store calls of a dead process are not answered, so none of them can write."""
    me = asyncio.current_task()
    for _ in range(200):
        others = [task for task in asyncio.all_tasks() if task is not me]
        if not others:
            return
        for task in others:
            task.cancel()
        await asyncio.wait(others, timeout=0.5)
    raise AssertionError(f"tasks that cannot be cancelled: {others}")
