"""The simulation: the real App, committer, worker and decisions over the real SQLite statements, with everything that
can go wrong going wrong, in an order that a seed decides.

Parties: workers (claiming, running, committing, firing schedules), and clients that start, cancel, emit, enqueue and
redrive, two of them with the same keys. Faults: a party dies at a random moment or exactly at a store call, before it
or after it was applied; calls fail before or lose their reply; parties stand still for longer than a lease; workers
are replaced in good order. Then it heals, and everything must have ended as the history check says.
"""

from __future__ import annotations

import asyncio
import gc
import hashlib
import logging
import os
import random
import sys
import warnings
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

import penstock.worker.worker as worker_module
from penstock import App, Permanent, Retry, flow, job, step
from penstock.core.errors import PenstockError, RunError, StoreUnavailable, UnknownJob, UnknownRun
from penstock.stores.sqlite import runs as run_rows
from penstock.testing.clock import START_MS
from penstock.testing.faults import FaultStore, When
from penstock.testing.history import Effect, Trigger, Violation, check, read_history
from penstock.testing.inline_store import InlineDatabase, InlineStore

from . import simwaits
from .keeper import TaskKeeper
from .simloop import Deadlock, Party, SimLoop

LEASE = 1.0
HEAL_LIMIT = 60.0  # virtual seconds

# The flows. `WORLD` is the simulation that runs at the moment: one at a time in a process.

WORLD: World


async def _work(ctx: Any, slow: float = 0.0) -> None:
    """What every handler does first: note that it runs, say something now and then, take a while."""
    world = WORLD
    world.effects.append(
        Effect(ctx.run_id or "", ctx.step or ctx.queue, ctx.job_id, ctx.attempt, ctx.idempotency_key())
    )
    dice = world.dice(ctx.job_id, ctx.attempt)
    said = f"{ctx.job_id}/{ctx.attempt}"
    if dice.random() < 0.3:
        ctx.log(f"{said}/begins")
    await asyncio.sleep(dice.choice((0.0, 0.01, 0.05, 0.3)) + slow * dice.random())
    if dice.random() < 0.3:
        ctx.progress(f"{said}/half")
        await asyncio.sleep(dice.choice((0.0, 0.05, 0.2)))
    if dice.random() < 0.1:
        ctx.partial(f"{said}/some")


async def _stumble(ctx: Any, chance: float) -> None:
    if ctx.attempt < 4 and WORLD.dice(ctx.job_id, ctx.attempt, "stumble").random() < chance:
        raise Retry("stumbled")


QUICK = {"attempts": 8, "backoff": {"type": "fixed", "delayMs": 200, "jitter": False}}


@flow("line", queue="a", emits="line.one", retry=QUICK)
async def line_1(x: Any, ctx: Any) -> None:
    await _work(ctx)
    ctx.emit("line.one", x)


@step(on="line.one", queue="b", emits="line.two", retry=QUICK)
async def line_2(x: Any, ctx: Any) -> None:
    await _work(ctx, 0.5)
    await _stumble(ctx, 0.3)
    ctx.emit("line.two", x)


@step(on="line.two", queue="a", retry=QUICK)
async def line_3(x: Any, ctx: Any) -> Any:
    await _work(ctx)
    return x


@flow("fan", queue="a", emits=["fan.part", "fan.go"], retry=QUICK)
async def fan_split(x: Any, ctx: Any) -> None:
    await _work(ctx)
    for part in range(x["parts"]):
        ctx.emit("fan.part", {"part": part})
    ctx.emit("fan.go", {})


@step(on="fan.part", mode="each", queue="b", emits=[], retry=QUICK)
async def fan_work(x: Any, ctx: Any) -> Any:
    await _work(ctx, 0.3)
    await _stumble(ctx, 0.2)
    await ctx.shared.patch("count", lambda n: (n or 0) + 1)
    WORLD.patched.add(ctx.idempotency_key())
    return x["part"]


@step(on="fan.go", queue="a", emits="fan.left", retry=QUICK)
async def fan_left(x: Any, ctx: Any) -> None:
    await _work(ctx)
    ctx.emit("fan.left", {})


@step(on="fan.go", queue="b", emits="fan.right", retry=QUICK)
async def fan_right(x: Any, ctx: Any) -> None:
    await _work(ctx, 1.5)
    ctx.emit("fan.right", {})


@step(on=["fan.left", "fan.right"], mode="all", queue="a", emits=[], retry=QUICK)
async def fan_join(x: Any, ctx: Any) -> str:
    await _work(ctx)
    ctx.state.set("joined", True)
    return "joined"


@flow("doomed", queue="a", emits="doomed.go", retry=QUICK)
async def doomed_1(x: Any, ctx: Any) -> None:
    await _work(ctx)
    ctx.emit("doomed.go", x)


@step(on="doomed.go", queue="b", emits=[], retry=2)
async def doomed_2(x: Any, ctx: Any) -> str:
    await _work(ctx)
    if "redrive" not in ctx.job_id:
        raise Permanent("not before it is sent again")
    return "at last"


@flow("saga", queue="a", emits="saga.reserved", compensation="saga_undo", retry=QUICK)
async def saga_reserve(x: Any, ctx: Any) -> None:
    await _work(ctx)
    ctx.emit("saga.reserved", x)


@step(on="saga.reserved", queue="b", emits=[])
async def saga_charge(x: Any, ctx: Any) -> None:
    await _work(ctx)
    raise Permanent("no money")


@step(flow="saga", queue="a", emits=[], retry=QUICK)
async def saga_undo(x: Any, ctx: Any) -> None:
    await _work(ctx)


@flow("door", queue="a", emits="door.open", accepts="guest.came", retry=QUICK)
async def door_open(x: Any, ctx: Any) -> None:
    await _work(ctx, 3.0)
    ctx.emit("door.open", x)


@step(on="guest.came", mode="each", flow="door", queue="b", emits=[], retry=QUICK)
async def door_guest(x: Any, ctx: Any) -> None:
    await _work(ctx)


@job(queue="mail", retry=QUICK)
async def mail(x: Any, ctx: Any) -> str:
    await _work(ctx, 0.5)
    await _stumble(ctx, 0.3)
    return "sent"


HANDLERS = [
    line_1, line_2, line_3, fan_split, fan_work, fan_left, fan_right, fan_join, doomed_1, doomed_2, saga_reserve, saga_charge,
    saga_undo, door_open, door_guest, mail, *simwaits.HANDLERS,
]  # fmt: skip

TRIGGERS = {
    "line": {"line_1": Trigger(()), "line_2": Trigger(("line.one",)), "line_3": Trigger(("line.two",))},
    "fan": {
        "fan_split": Trigger(()),
        "fan_work": Trigger(("fan.part",), "each"),
        "fan_left": Trigger(("fan.go",)),
        "fan_right": Trigger(("fan.go",)),
        "fan_join": Trigger(("fan.left", "fan.right"), "all"),
    },
    "doomed": {"doomed_1": Trigger(()), "doomed_2": Trigger(("doomed.go",))},
    "saga": {"saga_reserve": Trigger(()), "saga_charge": Trigger(("saga.reserved",))},
    "door": {"door_open": Trigger(()), "door_guest": Trigger(("guest.came",), "each")},
    **simwaits.TRIGGERS,
}


class SimClock:
    def __init__(self, loop: SimLoop) -> None:
        self._loop = loop

    def now_ms(self) -> int:
        return START_MS + int(self._loop.time() * 1000)


class Profile(msgspec.Struct):
    """How bad it is. Rates are for each store call, and for each second."""

    before: float = 0.0
    after: float = 0.0
    dies: float = 0.0
    deaths: float = 0.0
    pauses: float = 0.0
    restarts: float = 0.0
    latency: float = 0.01
    calm: bool = False  # nothing can cost anyone a lease

    @classmethod
    def drawn(cls, rng: random.Random) -> Profile:
        kind = rng.randrange(7)
        if kind == 6:
            return cls(calm=True, latency=rng.choice((0.0, 0.05)))
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


class Storm:
    """The weather of one party."""

    def __init__(self, world: World) -> None:
        self._world = world

    async def on_call(self, method: str, when: When) -> None:
        world, rng = self._world, self._world.rng
        profile = world.profile
        if profile.latency and rng.random() < 0.5:
            await asyncio.sleep(rng.random() * profile.latency)
        if world.healed:
            return
        if rng.random() < profile.dies:
            world.die(world.loop.current())
            await world.loop.create_future()  # for ever
        if rng.random() < (profile.before if when == "before" else profile.after):
            raise StoreUnavailable(f"simulated {when} {method}")

    def on_blocking_call(self, method: str, when: When) -> None:
        world = self._world
        if not world.healed and world.rng.random() < (
            world.profile.before if when == "before" else world.profile.after
        ):
            raise StoreUnavailable(f"simulated {when} {method}")


class World:
    """One seed."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.rng = random.Random(seed)
        self.profile = Profile.drawn(self.rng)
        self.loop = SimLoop(random.Random(seed + 1))
        self.clock = SimClock(self.loop)
        self.database = InlineDatabase()
        self.database.on_commit = self._committed
        self.healed = False
        self.effects: list[Effect] = []
        self.patched: set[str] = set()
        self.acknowledged: set[str] = set()
        self.emitted: dict[str, tuple[str, bool]] = {}  # key -> run, acknowledged
        self.facts = simwaits.Facts()
        self.paid: set[str] = set()
        self.violations: list[Violation] = []
        self.counts: Counter[str] = Counter()
        self.max_crashes = 1000 if self.rng.random() < 0.8 else 3
        self._apps: dict[str, App] = {}
        self._parties: dict[InlineStore, Party] = {}
        self._glances: set[InlineStore] = set()
        self._workers: dict[str, Party] = {}
        self._clients: dict[str, Party] = {}
        self._done: set[str] = set()
        self._numbers = iter(range(1, 10_000))
        self._plan = self._draw_plan()
        self._closing = False

    def dice(self, *what: object) -> random.Random:
        """Chance that belongs to a thing, not to the order things happen in."""
        return random.Random(repr((self.seed, *what)))

    # The story

    def play(self) -> list[Violation]:
        try:
            self.loop.run(self._story(), HEAL_LIMIT + 120)
        except Deadlock as problem:
            self.violations.append(Violation("stuck", "world", str(problem)))
        for problem in self.loop.problems:
            self.violations.append(
                Violation("exception", "loop", repr(problem.get("exception") or problem.get("message")))
            )
        return self.violations

    async def _story(self) -> None:
        for n in range(self.rng.choice((1, 2, 2, 3))):
            self._hire(f"w{n}")
        for n in range(2):
            self._clients[f"c{n}"] = self.loop.spawn(f"c{n}", self._client(f"c{n}"))
        end = self.loop.time() + self.rng.uniform(4, 8)
        while self.loop.time() < end:
            await asyncio.sleep(0.1)
            self._strike()
        self.healed = True
        if len(self._workers) < 2:
            self._hire("w9")
        await self._quiet()
        await self._close()
        await self._judge()

    def _strike(self) -> None:
        rng, profile = self.rng, self.profile
        everyone = [*self._workers.values(), *self._clients.values()]
        if everyone and rng.random() < profile.deaths * 0.1:
            self.die(rng.choice(everyone))
        if everyone and rng.random() < profile.pauses * 0.1:
            self.counts["pauses"] += 1
            self.loop.pause(rng.choice(everyone), LEASE * rng.uniform(0.3, 3.5))
        if self._workers and rng.random() < profile.restarts * 0.1:
            name = rng.choice(sorted(self._workers))
            if name in self._apps:
                self.counts["restarts"] += 1
                self._apps[name].workers.stop()

    def die(self, party: Party) -> None:
        if party.dead:
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
            self.loop.call_later(later, lambda: self._hire(f"w{next(self._numbers)}x"), context=self.loop.root.context)

    # Workers

    def _hire(self, name: str) -> None:
        if self._closing:
            return
        self._workers[name] = self.loop.spawn(name, self._worker(name))

    async def _worker(self, name: str) -> None:
        app = self._app(name)
        self._apps[name] = app
        async with app:
            await app.workers.run(name=name, concurrency=self.dice(name).choice((1, 2, 5)))
        self._apps.pop(name, None)
        self._workers.pop(name, None)
        if not self.healed:
            self.loop.call_later(0.1, lambda: self._hire(f"{name}r"), context=self.loop.root.context)

    def _app(self, name: str) -> App:
        store = InlineStore(self.database, clock=self.clock)
        self._parties[store] = self.loop.current()
        faulty: Any = FaultStore(store, Storm(self))
        return App(
            handlers=HANDLERS, store=faulty, clock=self.clock, url=":memory:", lease=f"{LEASE}s",
            max_crashes=self.max_crashes, grace="1s",
        )  # fmt: skip

    def _committed(self, by: InlineStore) -> None:
        """Others hear of a commit a little later; and at no moment is there a run that nothing will move on."""
        self.counts["commits"] += 1
        for store in self.database.stores:
            party = self._parties[store]
            if store is not by and store not in self._glances and not party.dead:
                self._glances.add(store)
                self.loop.call_later(self.rng.uniform(0, 0.05), self._glance, store, context=party.context)
        loose = run_rows.stuck_runs(self.database.connection.cursor(), 5)
        if loose:
            self.violations.append(Violation("loose", loose[0], "an open run with no job and no wait"))

    def _glance(self, store: InlineStore) -> None:
        self._glances.discard(store)
        store.signals.notify_all()

    # Clients

    def _draw_plan(self) -> list[tuple[float, str, Any]]:
        """What clients do, and when; both do all of it with the same keys, so most is done twice."""
        rng = self.rng
        plan: list[tuple[float, str, Any]] = []
        for n in range(rng.randint(3, 6)):
            name = rng.choice(("line", "line", "fan", "fan", "doomed", "saga", "door", *simwaits.FLOWS))
            run = f"{name}-{n}"
            at = rng.uniform(0, 3)
            if name in simwaits.FLOWS:
                plan += simwaits.plan_of(name, run, at, rng)
            else:
                plan.append((at, "start", (name, run, {"parts": rng.randint(1, 3)})))
            if rng.random() < 0.35:
                plan.append((at + rng.uniform(0, 3), "cancel", run))
            if name == "door":
                plan += [(at + rng.uniform(0, 2), "emit", (run, f"guest-{n}-{k}")) for k in range(2)]
                plan.append((at + rng.uniform(0, 2), "shout", (run, f"shout-{n}")))
            if name == "doomed":
                plan.append((at + rng.uniform(1, 6), "redrive", run))
        plan += [(rng.uniform(0, 4), "mail", f"letter-{n}") for n in range(rng.randint(0, 3))]
        if rng.random() < 0.2:
            plan.append((0.5, "schedule", "tick"))
        return [(round(at * 4) / 4, what, about) for at, what, about in sorted(plan, key=lambda item: item[0])]

    async def _client(self, name: str) -> None:
        """Carries out the plan, things of the same moment side by side; some clients are workers as well."""
        app = self._app(name)
        started: dict[str, asyncio.Event] = {}
        async with app:
            tasks = [asyncio.create_task(self._item(app, name, item, started)) for item in self._plan]
            for task in tasks:
                task.add_done_callback(self._note_exception)
            if not self.profile.calm and self.dice(name).random() < 0.5:
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
        known = started.setdefault(run, asyncio.Event())
        await asyncio.sleep(max(at - self.loop.time(), 0))
        if what in ("cancel", "emit", "shout", "redrive", "pay", "fire", "pause"):
            await known.wait()
        if what == "shout":
            await self._shout(app, name, about)
            return
        times = 2 if self.dice(name, what, run).random() < 0.3 else 1
        await asyncio.gather(*(self._insist(getattr(self, f"_{what}"), app, about) for _ in range(times)))
        known.set()

    def _note_exception(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (problem := task.exception()) is not None:
            self.violations.append(Violation("exception", "client", repr(problem)))

    async def _insist(self, call: Callable[[App, Any], Awaitable[None]], app: App, about: Any) -> None:
        """Asks again, as the error says is safe, until there is an answer."""
        while True:
            try:
                return await call(app, about)
            except StoreUnavailable:
                self.counts["asked again"] += 1
                await asyncio.sleep(0.1)

    async def _shout(self, app: App, name: str, about: Any) -> None:
        """An event without a key can be sent once only: it may be there once or not at all."""
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
            self.violations.append(Violation("lost", run, "its start was answered, then it was unknown"))

    async def _emit(self, app: App, about: Any) -> None:
        run, key = about
        self.emitted.setdefault(key, (run, False))
        try:
            await app.emit("guest.came", {"key": key}, run=run, key=key)
        except RunError:
            return  # it had ended
        self.emitted[key] = (run, True)

    async def _pay(self, app: App, about: Any) -> None:
        run, key = about
        await app.emit("paid", {"order": run, "key": key}, key=key)
        self.paid.add(key)

    async def _fire(self, app: App, about: Any) -> None:
        """Until the handler has told someone its token, or there is no handler any more."""
        run, payload = about
        while not await simwaits.fire(self, app, run, payload):
            row = await app.store.run(run)
            if row is None or row.closed:
                return
            await asyncio.sleep(0.2)

    async def _pause(self, app: App, about: Any) -> None:
        """Lets it go on before the client's plan is done, whoever paused it last."""
        run, seconds = about
        try:
            await app.runs.pause(run, "by the plan")
            await asyncio.sleep(seconds)
            await app.runs.resume(run, "by the plan")
        except RunError:
            return  # it had ended

    async def _redrive(self, app: App, run: str) -> None:
        try:
            await app.dead_letters.redrive(f"{run}.doomed_2.1")
        except UnknownJob:
            return  # not dead yet, or taken
        except PenstockError as problem:
            if isinstance(problem, StoreUnavailable):
                raise

    async def _mail(self, app: App, id: str) -> None:
        await app.enqueue("mail", {"to": id}, key=id)
        self.acknowledged.add(id)

    async def _schedule(self, app: App, id: str) -> None:
        if not any(row.id == id for row in await app.schedules.list()):
            await app.schedules.add(id, queue="mail", every="2s", input={"to": "tick"})

    # The end

    async def _quiet(self) -> None:
        """Until nothing is under way."""
        store = InlineStore(self.database, clock=self.clock)
        ticking = any(what == "schedule" for _, what, _ in self._plan)
        deadline = self.loop.time() + HEAL_LIMIT
        while self.loop.time() < deadline:
            await asyncio.sleep(0.5)
            if len(self._done) < 2:
                continue
            if ticking:
                await store.remove_schedule("tick")
            busy = sum(
                n for queue in await store.queues() if not queue.name.endswith("-dlq")
                for state, n in queue.counts.items() if state in ("waiting", "delayed", "active", "suspended")
            )  # fmt: skip
            if not busy and all(row.closed for row in await store.runs()):
                return

    async def _close(self) -> None:
        self._closing = True
        await asyncio.sleep(1.0)  # those hired last have begun
        for app in list(self._apps.values()):
            app.workers.stop()
        deadline = self.loop.time() + 60
        while self._apps and self.loop.time() < deadline:
            await asyncio.sleep(0.1)
        if self._apps:
            self.violations.append(Violation("stuck", ", ".join(self._apps), "a worker does not stop"))

    async def _judge(self) -> None:
        store = InlineStore(self.database, clock=self.clock)
        history = await read_history(
            store,
            effects=self.effects,
            acknowledged=self.acknowledged,
            triggers=TRIGGERS,
            is_undisturbed=self.profile.calm,
        )
        self.violations += check(history)
        self.counts["runs"] += len(history.runs)
        self.counts["attempts"] += len(self.effects)
        self._judge_emits(history)
        self._judge_frames(history)
        self.violations += simwaits.judge(self, history)
        await self._judge_state(store, history)
        digest = hashlib.sha256()
        for run in sorted(history.runs, key=lambda r: r.id):
            for event in run.events:
                digest.update(repr((event.id, event.kind, event.meta)).encode())
        self.digest = digest.hexdigest()[:16]

    def _judge_emits(self, history: Any) -> None:
        seen: Counter[str] = Counter()
        for run in history.runs:
            seen.update(e.data["key"] for e in run.events if e.kind == "guest.came")
        for key, (run, acknowledged) in self.emitted.items():
            if seen[key] > 1 or (acknowledged and not seen[key]):
                self.violations.append(
                    Violation("emits", run, f"{key} was recorded {seen[key]} times (answered: {acknowledged})")
                )

    def _judge_frames(self, history: Any) -> None:
        """What a handler said while it ran is there once."""
        seen: Counter[str] = Counter()
        for events in (*(run.events for run in history.runs), *history.queues.values()):
            for event in events:
                if event.kind == "log" or event.kind.endswith((".progress", ".partial")):
                    seen[str(event.data.get("msg") or event.data.get("progress") or event.data.get("chunk"))] += 1
        for what, times in seen.items():
            if times > 1:
                self.violations.append(Violation("frames", what, f"was recorded {times} times"))

    async def _judge_state(self, store: InlineStore, history: Any) -> None:
        row = await store.state("shared/count")
        count = int(row.value) if row is not None else 0
        ran = {effect.key for effect in self.effects if effect.step == "fan_work"}
        if not len(self.patched) <= count <= len(ran):
            self.violations.append(
                Violation("state", "count", f"is {count}; {len(self.patched)} patches returned, {len(ran)} could have")
            )


# Running seeds


def prepare() -> None:
    """Makes this process a simulator: no threads, no time, no chance of its own."""
    logging.disable(logging.CRITICAL)
    worker_module.LeaseRenewer = TaskKeeper  # type: ignore[misc,assignment]
    warnings.simplefilter("ignore")
    sys.unraisablehook = lambda _: None  # coroutines of parties that were killed, closed by the collector
    gc.disable()
    gc.collect()
    gc.freeze()


def play(seed: int) -> World:
    """Plays one seed; the same seed plays the same way."""
    global WORLD
    chance = random.Random(seed + 2)
    real_urandom, real_random = os.urandom, worker_module.random
    os.urandom = chance.randbytes
    worker_module.random = _Seeded(seed)  # type: ignore[assignment]
    WORLD = World(seed)
    try:
        WORLD.play()
    finally:
        os.urandom, worker_module.random = real_urandom, real_random
        WORLD.database.close()
    return WORLD


def forget() -> None:
    """Lets go of what the last seed left behind, outside any loop."""
    global WORLD
    WORLD = None  # type: ignore[assignment]
    gc.collect()


class _Seeded:
    """Stands for the module `random` where a worker makes its own."""

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def Random(self) -> random.Random:  # noqa: N802
        return random.Random(self._seed)


def play_many(first: int, count: int, *, stop_at: int = 5) -> dict[str, Any]:
    """Plays seeds in a row; stops after a few that failed, or when the time is up."""
    import time

    began = time.monotonic()
    failures: list[dict[str, Any]] = []
    totals: Counter[str] = Counter()
    played = 0
    for seed in range(first, first + count):
        world = play(seed)
        played += 1
        totals.update(world.counts)
        if world.violations:
            failures.append({"seed": seed, "violations": [str(v) for v in world.violations[:5]]})
        del world
        forget()
        if len(failures) >= stop_at:
            break
    return {"played": played, "failures": failures, "totals": dict(totals), "seconds": time.monotonic() - began}
