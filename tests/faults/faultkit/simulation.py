"""The simulation: the real App, committer, worker and decisions over the real SQLite statements, with many faults in
an order that a seed decides.

Parties: workers (claim, run, commit, fire schedules), and clients that start, cancel, emit, enqueue and redrive, two of
them with the same keys. Faults: a party dies at a random moment or exactly at a store call, before or after the store
executed it; calls fail or lose their reply; parties pause for longer than a lease; workers are stopped and replaced.
Then the faults end, and everything must have ended as the history check demands.
"""

from __future__ import annotations

import asyncio
import gc
import hashlib
import logging
import os
import random
import sys
import time
import warnings
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

import penstock.worker.worker as worker_module
from penstock import App
from penstock.core.errors import PenstockError, RunError, StoreUnavailable, UnknownJob, UnknownRun
from penstock.stores.sqlite import runs as run_rows
from penstock.testing.clock import START_MS
from penstock.testing.faults import FaultStore, When
from penstock.testing.history import Effect, Violation, check, read_history
from penstock.testing.threadless_sqlite import InlineDatabase, InlineStore

from . import sim_flows, sim_waits
from .lease_renewer_task import LeaseRenewerTask
from .patches import replace
from .sim_loop import Deadlock, Party, SimLoop

LEASE_S = 1.0
RECOVERY_LIMIT_S = 60.0  # of virtual time

HANDLERS = [*sim_flows.HANDLERS, *sim_waits.HANDLERS]
TRIGGERS = {**sim_flows.TRIGGERS, **sim_waits.TRIGGERS}


class SimClock:
    def __init__(self, loop: SimLoop) -> None:
        self._loop = loop

    def now_ms(self) -> int:
        return START_MS + int(self._loop.time() * 1000)


class Profile(msgspec.Struct):
    """The rates of faults: per store call, or per second."""

    before: float = 0.0  # per call: fails before the store executes it
    after: float = 0.0  # per call: its reply is lost
    dies: float = 0.0  # per call: the party dies there
    deaths: float = 0.0  # per second
    pauses: float = 0.0
    restarts: float = 0.0
    latency: float = 0.01
    is_undisturbed: bool = False  # no fault can cost a party its lease

    @classmethod
    def draw(cls, rng: random.Random) -> Profile:
        kind = rng.randrange(7)
        if kind == 6:
            return cls(is_undisturbed=True, latency=rng.choice((0.0, 0.05)))
        if kind == 0:
            return cls(latency=rng.choice((0.0, 0.01, 0.1)), deaths=0.4)
        if kind == 1:
            return cls(after=0.15, before=0.02)
        if kind == 2:
            return cls(pauses=0.5)
        if kind == 3:
            return cls(dies=0.03)
        if kind == 4:
            return cls(restarts=0.5, after=0.05)
        return cls(
            before=0.05,
            after=0.05,
            dies=0.01,
            deaths=0.15,
            pauses=0.15,
            restarts=0.1,
            latency=rng.choice((0.0, 0.02, 0.2)),
        )


class RandomFaults:
    """The store faults of one party, drawn by the rates of the profile."""

    def __init__(self, sim: Simulation) -> None:
        self._sim = sim

    async def on_call(self, method: str, when: When) -> None:
        sim, rng = self._sim, self._sim.rng
        profile = sim.profile
        if profile.latency and rng.random() < 0.5:
            await asyncio.sleep(rng.random() * profile.latency)
        if sim.is_recovering:
            return
        if rng.random() < profile.dies:
            sim.kill(sim.loop.current())
            await sim.loop.create_future()  # never returns
        if rng.random() < (profile.before if when == "before" else profile.after):
            raise StoreUnavailable(f"simulated {when} {method}")

    def on_blocking_call(self, method: str, when: When) -> None:
        sim = self._sim
        if not sim.is_recovering and sim.rng.random() < (sim.profile.before if when == "before" else sim.profile.after):
            raise StoreUnavailable(f"simulated {when} {method}")


class Simulation:
    """The simulation of one seed."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.rng = random.Random(seed)
        self.profile = Profile.draw(self.rng)
        self.loop = SimLoop(random.Random(seed + 1))
        self.clock = SimClock(self.loop)
        self.database = InlineDatabase()
        self.database.on_commit = self._on_commit
        self.is_recovering = False
        self.effects: list[Effect] = []
        self.patched: set[str] = set()
        self.acknowledged: set[str] = set()
        self.emitted: dict[str, tuple[str, bool]] = {}  # key -> run, acknowledged
        self.observations = sim_waits.Observations()
        self.paid: set[str] = set()
        self.violations: list[Violation] = []
        self.counts: Counter[str] = Counter()
        self.max_crashes = 1000 if self.rng.random() < 0.8 else 3
        self._apps: dict[str, App] = {}
        self._parties: dict[InlineStore, Party] = {}
        self._notified: set[InlineStore] = set()
        self._workers: dict[str, Party] = {}
        self._clients: dict[str, Party] = {}
        self._done: set[str] = set()
        self._numbers = iter(range(1, 10_000))
        self._plan = self._draw_plan()
        self._is_closing = False

    def dice(self, *what: object) -> random.Random:
        """Return a random generator that depends on its subject, not on the order of events."""
        return random.Random(repr((self.seed, *what)))

    def run(self) -> list[Violation]:
        """Run the simulation to its end and return all violations."""
        try:
            self.loop.run(self._run(), RECOVERY_LIMIT_S + 120)
        except Deadlock as problem:
            self.violations.append(Violation("stuck", "simulation", str(problem)))
        for problem in self.loop.problems:
            self.violations.append(
                Violation("exception", "loop", repr(problem.get("exception") or problem.get("message")))
            )
        return self.violations

    async def _run(self) -> None:
        for n in range(self.rng.choice((1, 2, 2, 3))):
            self._start_worker(f"w{n}")
        for n in range(2):
            self._clients[f"c{n}"] = self.loop.spawn(f"c{n}", self._client(f"c{n}"))
        end = self.loop.time() + self.rng.uniform(4, 8)
        while self.loop.time() < end:
            await asyncio.sleep(0.1)
            self._inject_faults()
        self.is_recovering = True
        if len(self._workers) < 2:
            self._start_worker("w9")
        await self._wait_until_idle()
        await self._close()
        await self._check()

    def _inject_faults(self) -> None:
        rng, profile = self.rng, self.profile
        parties = [*self._workers.values(), *self._clients.values()]
        if parties and rng.random() < profile.deaths * 0.1:
            self.kill(rng.choice(parties))
        if parties and rng.random() < profile.pauses * 0.1:
            self.counts["pauses"] += 1
            self.loop.pause(rng.choice(parties), LEASE_S * rng.uniform(0.3, 3.5))
        if self._workers and rng.random() < profile.restarts * 0.1:
            name = rng.choice(sorted(self._workers))
            if name in self._apps:
                self.counts["restarts"] += 1
                self._apps[name].workers.stop()

    def kill(self, party: Party) -> None:
        """Kill a party; a new one takes over a little later."""
        if party.is_dead:
            return
        self.counts["deaths"] += 1
        self.loop.kill(party)
        later = self.rng.uniform(0.0, 1.5)
        if party.name in self._clients:
            again = self._client
            self.loop.call_later(
                later,
                lambda: self._clients.__setitem__(party.name, self.loop.spawn(party.name, again(party.name))),
                context=self.loop.root.context,
            )
        else:
            self._workers.pop(party.name, None)
            self._apps.pop(party.name, None)
            name = f"w{next(self._numbers)}x"
            self.loop.call_later(later, lambda: self._start_worker(name), context=self.loop.root.context)

    # Workers

    def _start_worker(self, name: str) -> None:
        if self._is_closing:
            return
        self._workers[name] = self.loop.spawn(name, self._worker(name))

    async def _worker(self, name: str) -> None:
        app = self._app(name)
        self._apps[name] = app
        async with app:
            await app.workers.run(name=name, concurrency=self.dice(name).choice((1, 2, 5)))
        self._apps.pop(name, None)
        self._workers.pop(name, None)
        if not self.is_recovering:
            self.loop.call_later(0.1, lambda: self._start_worker(f"{name}r"), context=self.loop.root.context)

    def _app(self, name: str) -> App:
        store = InlineStore(self.database, clock=self.clock)
        self._parties[store] = self.loop.current()
        faulty: Any = FaultStore(store, RandomFaults(self))
        return App(
            handlers=HANDLERS, store=faulty, clock=self.clock, url=":memory:", lease=f"{LEASE_S}s",
            max_crashes=self.max_crashes, grace="1s",
        )  # fmt: skip

    def _on_commit(self, by: InlineStore) -> None:
        """Notify other parties a little later, and check that no run is stuck."""
        self.counts["commits"] += 1
        for store in self.database.stores:
            party = self._parties[store]
            if store is not by and store not in self._notified and not party.is_dead:
                self._notified.add(store)
                self.loop.call_later(self.rng.uniform(0, 0.05), self._notify, store, context=party.context)
        stuck = run_rows.stuck_runs(self.database.connection.cursor(), 5)
        if stuck:
            self.violations.append(Violation("stuck", stuck[0], "an open run with no job and no wait"))

    def _notify(self, store: InlineStore) -> None:
        self._notified.discard(store)
        store.signals.notify_all()

    # Clients

    def _draw_plan(self) -> list[tuple[float, str, Any]]:
        """Draw what clients do, and when. Both clients do all of it with the same keys, so most is done twice."""
        rng = self.rng
        plan: list[tuple[float, str, Any]] = []
        for n in range(rng.randint(3, 6)):
            name = rng.choice(("line", "line", "fan", "fan", "doomed", "saga", "door", *sim_waits.FLOWS))
            run = f"{name}-{n}"
            at = rng.uniform(0, 3)
            if name in sim_waits.FLOWS:
                plan += sim_waits.plan_of(name, run, at, rng)
            else:
                plan.append((at, "start", (name, run, {"parts": rng.randint(1, 3)})))
            if rng.random() < 0.35:
                plan.append((at + rng.uniform(0, 3), "cancel", run))
            if name == "door":
                plan += [(at + rng.uniform(0, 2), "emit", (run, f"guest-{n}-{k}")) for k in range(2)]
                plan.append((at + rng.uniform(0, 2), "emit_once", (run, f"once-{n}")))
            if name == "doomed":
                plan.append((at + rng.uniform(1, 6), "redrive", run))
        plan += [(rng.uniform(0, 4), "mail", f"letter-{n}") for n in range(rng.randint(0, 3))]
        if rng.random() < 0.2:
            plan.append((0.5, "schedule", "tick"))
        return [(round(at * 4) / 4, what, about) for at, what, about in sorted(plan, key=lambda item: item[0])]

    async def _client(self, name: str) -> None:
        """Carry out the plan, actions of the same moment concurrently. Some clients are workers as well."""
        app = self._app(name)
        started: dict[str, asyncio.Event] = {}
        async with app:
            tasks = [asyncio.create_task(self._item(app, name, item, started)) for item in self._plan]
            for task in tasks:
                task.add_done_callback(self._record_exception)
            if not self.profile.is_undisturbed and self.dice(name).random() < 0.5:
                self._apps[name] = app
                async with app.workers.background(name=name, concurrency=4):
                    await asyncio.gather(*tasks)
                self._apps.pop(name, None)
            await asyncio.gather(*tasks)
        self._done.add(name)
        self._clients.pop(name, None)

    async def _item(self, app: App, name: str, item: tuple[float, str, Any], started: dict[str, asyncio.Event]) -> None:
        at, what, about = item
        run = about if isinstance(about, str) else about[1] if what == "start" else about[0]
        is_started = started.setdefault(run, asyncio.Event())
        await asyncio.sleep(max(at - self.loop.time(), 0))
        if what in ("cancel", "emit", "emit_once", "redrive", "pay", "fire", "pause"):
            await is_started.wait()
        if what == "emit_once":
            await self._emit_once(app, name, about)
            return
        times = 2 if self.dice(name, what, run).random() < 0.3 else 1
        await asyncio.gather(*(self._retry(getattr(self, f"_{what}"), app, about) for _ in range(times)))
        is_started.set()

    def _record_exception(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (problem := task.exception()) is not None:
            self.violations.append(Violation("exception", "client", repr(problem)))

    async def _retry(self, call: Callable[[App, Any], Awaitable[None]], app: App, about: Any) -> None:
        """Repeat a call while the store is unavailable, which its error declares safe."""
        while True:
            try:
                return await call(app, about)
            except StoreUnavailable:
                self.counts["retries"] += 1
                await asyncio.sleep(0.1)

    async def _emit_once(self, app: App, name: str, about: Any) -> None:
        """Emit an event without a key, which must not be repeated: it is recorded once or not at all."""
        run, key = about
        if name != "c0" or key in self.emitted:
            return
        self.emitted[key] = (run, False)
        try:
            await app.emit("guest.came", {"key": key}, run=run)
        except (RunError, StoreUnavailable):
            return
        self.emitted[key] = (run, True)

    async def _start(self, app: App, about: Any) -> None:
        flow, run, input = about
        await app.start(flow, input, key=run)
        self.acknowledged.add(run)

    async def _cancel(self, app: App, run: str) -> None:
        try:
            if await app.runs.cancel(run, "by the plan"):
                self.counts["cancelled"] += 1
        except UnknownRun:
            self.violations.append(Violation("lost", run, "its start was acknowledged, but the run is unknown"))

    async def _emit(self, app: App, about: Any) -> None:
        run, key = about
        self.emitted.setdefault(key, (run, False))
        try:
            await app.emit("guest.came", {"key": key}, run=run, key=key)
        except RunError:
            return  # the run has ended
        self.emitted[key] = (run, True)

    async def _pay(self, app: App, about: Any) -> None:
        run, key = about
        await app.emit("paid", {"order": run, "key": key}, key=key)
        self.paid.add(key)

    async def _fire(self, app: App, about: Any) -> None:
        """Fire the trigger of a run as soon as its handler has published a token, unless the run ends before."""
        run, payload = about
        while not await sim_waits.fire(self, app, run, payload):
            row = await app.store.run(run)
            if row is None or row.closed:
                return
            await asyncio.sleep(0.2)

    async def _pause(self, app: App, about: Any) -> None:
        """Pause a run and resume it before the client's plan ends."""
        run, seconds = about
        try:
            await app.runs.pause(run, "by the plan")
            await asyncio.sleep(seconds)
            await app.runs.resume(run, "by the plan")
        except RunError:
            return  # the run has ended

    async def _redrive(self, app: App, run: str) -> None:
        try:
            await app.dead_letters.redrive(f"{run}.doomed_2.1")
        except UnknownJob:
            return  # not dead yet, or already redriven
        except PenstockError as problem:
            if isinstance(problem, StoreUnavailable):
                raise

    async def _mail(self, app: App, id: str) -> None:
        await app.enqueue("mail", {"to": id}, key=id)
        self.acknowledged.add(id)

    async def _schedule(self, app: App, id: str) -> None:
        if not any(row.id == id for row in await app.schedules.list()):
            await app.schedules.add(id, queue="mail", every="2s", input={"to": "tick"})

    # End and checks

    async def _wait_until_idle(self) -> None:
        """Wait until no job is left and all runs are closed."""
        store = InlineStore(self.database, clock=self.clock)
        has_schedule = any(what == "schedule" for _, what, _ in self._plan)
        deadline = self.loop.time() + RECOVERY_LIMIT_S
        while self.loop.time() < deadline:
            await asyncio.sleep(0.5)
            if len(self._done) < 2:
                continue
            if has_schedule:
                await store.remove_schedule("tick")
            live = sum(
                n for queue in await store.queues() if not queue.name.endswith("-dlq")
                for state, n in queue.counts.items() if state in ("waiting", "delayed", "active", "suspended")
            )  # fmt: skip
            if not live and all(row.closed for row in await store.runs()):
                return

    async def _close(self) -> None:
        self._is_closing = True
        await asyncio.sleep(1.0)  # the workers that started last are running
        for app in list(self._apps.values()):
            app.workers.stop()
        deadline = self.loop.time() + 60
        while self._apps and self.loop.time() < deadline:
            await asyncio.sleep(0.1)
        if self._apps:
            self.violations.append(Violation("stuck", ", ".join(self._apps), "a worker does not stop"))

    async def _check(self) -> None:
        store = InlineStore(self.database, clock=self.clock)
        history = await read_history(
            store,
            effects=self.effects,
            acknowledged=self.acknowledged,
            triggers=TRIGGERS,
            is_undisturbed=self.profile.is_undisturbed,
        )
        self.violations += check(history)
        self.counts["runs"] += len(history.runs)
        self.counts["attempts"] += len(self.effects)
        self._check_emits(history)
        self._check_live_output(history)
        self.violations += sim_waits.check_waits(self, history)
        await self._check_state(store)
        digest = hashlib.sha256()
        for run in sorted(history.runs, key=lambda r: r.id):
            for event in run.events:
                digest.update(repr((event.id, event.kind, event.meta)).encode())
        self.digest = digest.hexdigest()[:16]

    def _check_emits(self, history: Any) -> None:
        seen: Counter[str] = Counter()
        for run in history.runs:
            seen.update(e.data["key"] for e in run.events if e.kind == "guest.came")
        for key, (run, acknowledged) in self.emitted.items():
            if seen[key] > 1 or (acknowledged and not seen[key]):
                self.violations.append(
                    Violation("emits", run, f"{key} was recorded {seen[key]} times (acknowledged: {acknowledged})")
                )

    def _check_live_output(self, history: Any) -> None:
        """Check that logs, progress and partials are recorded at most once."""
        seen: Counter[str] = Counter()
        for events in (*(run.events for run in history.runs), *history.queues.values()):
            for event in events:
                if event.kind == "log" or event.kind.endswith((".progress", ".partial")):
                    seen[str(event.data.get("msg") or event.data.get("progress") or event.data.get("chunk"))] += 1
        for what, times in seen.items():
            if times > 1:
                self.violations.append(Violation("frames", what, f"was recorded {times} times"))

    async def _check_state(self, store: InlineStore) -> None:
        row = await store.state("shared/count")
        count = int(row.value) if row is not None else 0
        ran = {effect.key for effect in self.effects if effect.step == "fan_work"}
        if not len(self.patched) <= count <= len(ran):
            self.violations.append(
                Violation(
                    "state", "count", f"is {count}, but {len(self.patched)} patches returned and {len(ran)} started"
                )
            )


# Run seeds


def prepare() -> None:
    """Make this process deterministic: no threads, no real time, no randomness of its own."""
    logging.disable(logging.CRITICAL)
    replace(worker_module, "LeaseRenewer", LeaseRenewerTask)
    warnings.simplefilter("ignore")
    sys.unraisablehook = lambda _: None  # the garbage collector closes coroutines of killed parties
    gc.disable()
    gc.collect()
    gc.freeze()


def run_seed(seed: int) -> Simulation:
    """Run one seed. The same seed always runs the same way."""
    rng = random.Random(seed + 2)
    real_urandom, real_random = os.urandom, worker_module.random
    os.urandom = rng.randbytes
    worker_module.random = _SeededRandom(seed)  # type: ignore[assignment]
    sim = sim_flows.SIMULATION = Simulation(seed)
    try:
        sim.run()
    finally:
        os.urandom, worker_module.random = real_urandom, real_random
        sim.database.close()
    return sim


def _collect_garbage() -> None:
    """Free what the last seed left behind, outside any loop."""
    sim_flows.SIMULATION = None
    gc.collect()


class _SeededRandom:
    """Replaces the module `random` in the worker, which creates its own generator."""

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def Random(self) -> random.Random:  # noqa: N802
        return random.Random(self._seed)


def run_seeds(first: int, count: int, *, stop_at: int = 5) -> dict[str, Any]:
    """Run seeds in a row; stop after `stop_at` failures."""
    started = time.monotonic()
    failures: list[dict[str, Any]] = []
    totals: Counter[str] = Counter()
    seeds = 0
    for seed in range(first, first + count):
        sim = run_seed(seed)
        seeds += 1
        totals.update(sim.counts)
        if sim.violations:
            failures.append({"seed": seed, "violations": [str(v) for v in sim.violations[:5]]})
        del sim
        _collect_garbage()
        if len(failures) >= stop_at:
            break
    return {"seeds": seeds, "failures": failures, "totals": dict(totals), "seconds": time.monotonic() - started}
