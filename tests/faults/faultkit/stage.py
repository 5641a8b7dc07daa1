"""A stage for one scenario: a store, an App on it whose store calls can fail or kill it, and the judgement at the end."""

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

from . import virtual
from .backends import Backend
from .keeper import TaskKeeper

T = TypeVar("T")
LIVE = ("waiting", "delayed", "active", "suspended")


class DeathAt(FaultAt):
    """The process dies at the k-th call of a method, before it is made or after it was."""

    def __init__(self, method: str, k: int, when: When) -> None:
        super().__init__(method, k, when)
        self.died = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    async def on_call(self, method: str, when: When) -> None:
        if not self.is_injected:
            super().on_blocking_call(method, when)
        if self.is_injected:
            await asyncio.get_running_loop().create_future()  # the dead hear no answers

    def on_blocking_call(self, method: str, when: When) -> None:
        if not self.is_injected:
            super().on_blocking_call(method, when)
        if self.is_injected:
            raise StoreUnavailable("dead")

    def inject(self) -> None:
        self._loop.call_soon_threadsafe(self.died.set)

    def __repr__(self) -> str:
        return f"{self.method}#{self.k}-dies-{self.when}"


class Stage:
    """What a scenario sees."""

    def __init__(self, store: Store, clock: Clock, lease: str, triggers: dict[str, dict[str, Trigger]]) -> None:
        self.store = store  # the store itself, in good weather
        self.clock = clock
        self.lease = lease
        self.effects: list[Effect] = []
        self.acknowledged: set[str] = set()
        self.notes: Counter[str] = Counter()
        self.app: App
        self._triggers = triggers

    def note(self, ctx: Any) -> None:
        """Handlers call this first."""
        step = ctx.step or ctx.queue
        self.effects.append(Effect(ctx.run_id or "", step, ctx.job_id, ctx.attempt, ctx.idempotency_key()))

    async def insist(self, call: Callable[[], Awaitable[T]]) -> T:
        """Asks again while the store does not answer, as its error says is safe."""
        for _ in range(50):
            try:
                return await call()
            except StoreUnavailable:
                self.notes["asked again"] += 1
                await asyncio.sleep(0.1)
        raise AssertionError("the store never answered")

    async def start(self, flow: str, run: str, input: Any = None) -> None:
        await self.insist(lambda: self.app.start(flow, input, key=run))
        self.acknowledged.add(run)

    async def settle(self, seconds: float = 40) -> None:
        """Waits until nothing is under way; at no moment may there be a run that nothing will move on."""
        deadline = asyncio.get_running_loop().time() + seconds
        while True:
            loose = await self.store.stuck_runs()
            assert not loose, f"open runs with no job and no wait: {loose}"
            queues = [queue for queue in await self.store.queues() if not queue.name.endswith("-dlq")]
            busy = sum(queue.counts[state] for queue in queues for state in LIVE)
            if not busy and all(row.closed for row in await self.store.runs(limit=1000)):
                return
            assert asyncio.get_running_loop().time() < deadline, f"still {busy} jobs under way"
            await asyncio.sleep(0.1)

    async def history(self) -> History:
        return await read_history(
            self.store, effects=self.effects, acknowledged=self.acknowledged, triggers=self._triggers
        )


class Scenario:
    """A story that can be told again from the start after a crash: everything in it has a key."""

    name: str
    triggers: dict[str, dict[str, Trigger]] = {}
    max_crashes = 100

    def handlers(self, stage: Stage) -> list[Callable[..., Any]]:
        raise NotImplementedError

    async def drive(self, stage: Stage) -> None:
        raise NotImplementedError

    async def judge(self, stage: Stage, history: History) -> None:
        """What holds of this story in particular."""


class Outcome:
    """How a scenario under one fault ended."""

    def __init__(self, problems: list[str], is_injected: bool, calls: Counter[str]) -> None:
        self.problems = problems
        self.is_injected = is_injected
        self.calls = calls


def perform(scenario: Scenario, backend: Backend, folder: Path, fault: Callable[[], FaultInjector]) -> Outcome:
    """Plays a scenario with a fault on a fresh store."""
    if not backend.our_clock:
        return asyncio.run(_perform(scenario, backend, folder, fault, SystemClock(), "500ms"))
    with _keeper_as_task():
        return virtual.run(lambda: _perform_virtually(scenario, backend, folder, fault))


async def _perform_virtually(
    scenario: Scenario, backend: Backend, folder: Path, fault: Callable[[], FaultInjector]
) -> Outcome:
    clock = virtual.VirtualClock(asyncio.get_running_loop())
    return await _perform(scenario, backend, folder, fault, clock, "2s")


@contextmanager
def _keeper_as_task() -> Iterator[None]:
    real = worker_module.LeaseRenewer
    worker_module.LeaseRenewer = TaskKeeper  # type: ignore[misc,assignment]
    try:
        yield
    finally:
        worker_module.LeaseRenewer = real  # type: ignore[misc]


async def _perform(
    scenario: Scenario, backend: Backend, folder: Path, fault: Callable[[], FaultInjector], clock: Clock, lease: str
) -> Outcome:
    inner = backend.open(folder, clock)
    await inner.open()
    _hold_time(inner)
    weather = fault()
    stage = Stage(inner, clock, lease, scenario.triggers)
    store = FaultStore(inner, weather, borrowed=True)
    problems: list[str] = []
    try:
        await _told(scenario, stage, store, weather)
        history = await stage.history()
        problems += [str(violation) for violation in check(history)]
        await scenario.judge(stage, history)
    except AssertionError as problem:
        problems.append(f"{scenario.name}: {problem}")
    except Exception as problem:
        problems.append(f"{scenario.name}: {type(problem).__name__}: {problem}")
    finally:
        await _bury()
        await inner.close()
    return Outcome(problems, getattr(weather, "is_injected", False), store.calls)


async def _told(scenario: Scenario, stage: Stage, store: FaultStore, weather: FaultInjector) -> None:
    """Tells the story; if its process dies, another one tells it again."""
    died = getattr(weather, "died", None)
    story = asyncio.create_task(_tell(scenario, stage, store))
    if died is None:
        await story
        return
    death = asyncio.create_task(died.wait())
    await asyncio.wait((story, death), return_when=asyncio.FIRST_COMPLETED)
    death.cancel()
    if not weather.is_injected:  # type: ignore[attr-defined]
        await story
        return
    await _bury()
    await _tell(scenario, stage, FaultStore(stage.store, NoFaults(), borrowed=True))


async def _tell(scenario: Scenario, stage: Stage, store: Any) -> None:
    stage.app = App(
        url=":memory:", handlers=scenario.handlers(stage), store=store, clock=stage.clock, lease=stage.lease,
        max_crashes=scenario.max_crashes, grace="1s", concurrency=4,
    )  # fmt: skip
    async with stage.app:
        await scenario.drive(stage)


def _hold_time(store: Store) -> None:
    """Time stands still while a call is inside the store or a thread works for us."""
    loop = asyncio.get_running_loop()
    if not isinstance(loop, virtual.VirtualLoop):
        return
    watched: Any = _Watched(store)
    loop.skipping.busy = lambda: loop.executing > 0 or watched.inside > 0


class _Watched:
    """Counts the calls inside a store by replacing its methods on the object."""

    def __init__(self, store: Any) -> None:
        self.inside = 0
        for name in dir(type(store)):
            found = getattr(store, name)
            if not name.startswith("_") and asyncio.iscoroutinefunction(found) and name not in ("open", "close"):
                setattr(store, name, self._count(found))

    def _count(self, call: Callable[..., Any]) -> Callable[..., Any]:
        async def counted(*args: Any, **kwargs: Any) -> Any:
            self.inside += 1
            try:
                return await call(*args, **kwargs)
            finally:
                self.inside -= 1

        return counted


async def _bury() -> None:
    """Ends every other task, without letting it write: what it still asks of the store is not answered."""
    me = asyncio.current_task()
    for _ in range(200):
        others = [task for task in asyncio.all_tasks() if task is not me]
        if not others:
            return
        for task in others:
            task.cancel()
        await asyncio.wait(others, timeout=0.5)
    raise AssertionError(f"tasks that cannot be ended: {others}")
