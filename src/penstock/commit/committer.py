"""Group commit: what arrives while a commit is in flight goes together in the next one.

Callers do not hand in units but intents: a function from the run as it is now to a unit. Several attempts of one run
that end together are decided one after another on each other's result and commit in one write; a conflict with another
process is decided again on the run it answers with.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, OrderedDict
from collections.abc import Callable
from typing import Protocol

import msgspec

from ..core.errors import StoreUnavailable
from ..ports.store import WorkQueue
from ..ports.unit import ClaimBatch, ClaimRequest, CommitReply, Committed, Conflict, Fenced, Receipt, Unit

log = logging.getLogger("penstock.store")

MAX_BATCH = 500
FEW = 8  # so few wait for the commit in flight rather than go beside it
MAX_RETRIES_OF_COMMAND = 4
LONGEST_WAIT = 1.0  # seconds between tries
REMEMBERED_RUNS = 2048

Build = Callable[[int, bytes | None], Unit | Receipt]
# A run's version and record, and the unit that is to write them if they are not committed yet.
_Head = tuple[int, bytes | None, str | None]


class WorkSource(Protocol):
    """The worker, as the committer sees it: it asks for work with every commit and takes what comes back."""

    @property
    def active(self) -> int:
        """How many attempts are in hand."""
        ...

    def ask(self, finishing: Counter[str]) -> ClaimRequest | None:
        """What it can take now; the slots are kept for the answer."""
        ...

    def take(self, ask: ClaimRequest, finishing: Counter[str], work: ClaimBatch | None) -> None:
        """The answer, None when there was none."""
        ...

    def free(self, ended: Counter[str], ask: ClaimRequest | None) -> None:
        """So many attempts of each queue are over, by a commit that asked for this."""
        ...


class Intent:
    """One unit to be, decided as late as possible."""

    __slots__ = (
        "build", "ended", "frees", "future", "known_as", "patient", "record", "run", "tries", "unit", "version"
    )  # fmt: skip

    def __init__(
        self,
        build: Build,
        *,
        run: str | None = None,
        version: int = 0,
        record: bytes | None = None,
        frees: str | None = None,
        patient: bool = False,
    ) -> None:
        self.build = build
        self.run = run
        self.version = version
        self.record = record
        self.frees = frees  # the queue whose slot this commit frees
        self.ended = False  # whether the worker knows that this slot is free
        self.patient = patient  # work in hand waits for the store as long as it takes; a command gives up
        self.tries = 0
        self.unit: Unit | None = None
        self.known_as: str | None = None  # the id its unit was sent under before
        self.future: asyncio.Future[Receipt]  # made when it is submitted

    def undecide(self) -> None:
        """Has it decided again, to be known by the same id."""
        if self.unit is not None:
            self.known_as, self.unit = self.unit.id, None

    def fail(self, problem: BaseException) -> None:
        if not self.future.done():
            self.future.set_exception(problem)

    def settle(self, receipt: Receipt) -> None:
        if not self.future.done():
            self.future.set_result(receipt)


class Committer:
    """Batches intents into commits: one in flight at a time, or a few where the store is behind a wire.

    With several, what the store works on and what handlers do overlap. Intents of one run are never in two commits at
    once: the second would be decided on a run that is about to change. An attempt waits for each of its commits anyway.
    Where the store keeps no order between them, only ends of attempts go beside each other.
    """

    is_deferred = False  # see CommandSink

    def __init__(self, store: WorkQueue) -> None:
        self.worker: WorkSource | None = None
        self._store = store
        self._loop = asyncio.get_running_loop()
        self._pending: list[Intent] = []
        self._known: OrderedDict[str, tuple[int, bytes]] = OrderedDict()
        profile = store.profile
        self._may_rewind = profile.may_rewind
        self._rewind_epoch = 0
        self._lanes = max(profile.max_commits_in_flight, profile.max_unordered_finishes)
        self._unordered = profile.max_unordered_finishes > profile.max_commits_in_flight
        self._flushing: set[asyncio.Task[None]] = set()
        self._open = 0  # lanes, of which one that is done may still be among the tasks until the loop turns
        self._flights = 0
        self._in_flight: set[str] = set()  # runs
        self._commands = 0  # flights that do not only end attempts
        self._closing = False

    async def submit(self, intent: Intent) -> Receipt:
        """Waits for the receipt; never a Conflict unless the intent's own build answers with one."""
        intent.future = self._loop.create_future()
        self._pending.append(intent)
        if not self._open or len(self._pending) == FEW:
            self._open_lane()
        return await intent.future

    async def close(self) -> None:
        """Waits until everything handed in has been answered; a store that is down is no longer waited for."""
        self._closing = True
        while under_way := [task for task in self._flushing if not task.done()]:
            await asyncio.wait(under_way)

    def _open_lane(self) -> None:
        if self._open < self._lanes:
            self._open += 1
            task = self._loop.create_task(self._flush(), name="penstock-commit")
            self._flushing.add(task)
            task.add_done_callback(self._lane_ended)

    def _lane_ended(self, task: asyncio.Task[None]) -> None:
        self._flushing.discard(task)
        self._open = min(self._open, len(self._flushing))  # one that was cancelled before it began has not said so

    async def _flush(self) -> None:
        try:
            while self._pending:
                if self._more_may_come():
                    await asyncio.sleep(0)
                batch = self._next_batch()
                if not batch:
                    return  # whoever they wait for goes on with them
                await self._fly(self._built(batch))
        finally:
            self._open -= 1

    async def _fly(self, batch: list[Intent]) -> None:
        runs = {intent.unit.run.id for intent in batch if intent.unit is not None and intent.unit.run is not None}
        commands = not _only_end(batch)
        self._in_flight |= runs
        self._flights += 1
        self._commands += commands
        try:
            await self._commit(batch)
        finally:
            self._flights -= 1
            self._commands -= commands
            self._in_flight -= runs

    def _next_batch(self) -> list[Intent]:
        """What goes now: all that waits and may, or the first half of it if the rest can go beside it."""
        beside = self._may_go_beside()
        if self._flights and (not beside or len(self._pending) < FEW):
            return []
        flying = self._in_flight
        may = [intent for intent in self._pending if intent.run not in flying] if flying else self._pending
        others = [intent for intent in self._pending if intent.run in flying] if flying else []
        most = MAX_BATCH
        if beside and self._flights + 1 < self._lanes and len(may) >= 2 * FEW:
            most = min(most, self._share(len(may)))
        batch, self._pending = may[:most], others + may[most:]
        if len(self._pending) >= FEW:
            self._open_lane()
        return batch

    def _share(self, waiting: int) -> int:
        """Half of what is in hand: the other half is what waits here, or what handlers have yet to do."""
        in_hand = waiting if self.worker is None else max(self.worker.active, waiting)
        return (in_hand + 1) // 2

    def _may_go_beside(self) -> bool:
        """Whether what waits may overtake what is under way: else what was handed in first is to be there first."""
        return not self._unordered or (not self._commands and _only_end(self._pending))

    def _more_may_come(self) -> bool:
        """Whether a turn of the loop is worth waiting: attempts that end together go together."""
        return self.worker is None or len(self._pending) < self.worker.active

    def _built(self, batch: list[Intent]) -> list[Intent]:
        """Decides each intent on the newest state known of its run; gives those that have a unit to commit."""
        self._forget_other_lives()
        heads: dict[str, _Head] = {}
        ready: list[Intent] = []
        later: list[Intent] = []
        for intent in batch:
            if intent.unit is not None or self._decide(intent, heads, later):
                ready.append(intent)
        self._pending[:0] = later
        return ready

    def _forget_other_lives(self) -> None:
        """What was acknowledged may be gone: nothing is decided on the strength of it any longer."""
        if self._may_rewind and self._store.rewind_epoch != self._rewind_epoch:
            self._rewind_epoch = self._store.rewind_epoch
            self._known.clear()

    def _decide(self, intent: Intent, heads: dict[str, _Head], later: list[Intent]) -> bool:
        """Whether the intent has a unit now. An answer that no version check would catch is not given on the strength
        of a unit that is itself still to be committed: it is decided `later`, when that one's fate is known."""
        version, record, after = intent.version, intent.record, None
        # A run that is to be new is the store's to judge: what is known here may be uncommitted yet, or swept away.
        if intent.run is not None and version:
            version, record, after = self._newest(intent.run, heads, (version, record, None))
        try:
            built = intent.build(version, record)
        except BaseException as problem:
            if after is None:
                intent.fail(problem)
            else:
                later.append(intent)
            return False
        if after is not None and (not isinstance(built, Unit) or built.run is None):
            later.append(intent)
            return False
        if not isinstance(built, Unit):
            intent.settle(built)
            return False
        if intent.known_as is not None:
            built.id = intent.known_as
        intent.unit = built
        if built.run is not None:
            if after is not None:
                built.run = msgspec.structs.replace(built.run, after=after)
            heads[built.run.id] = (built.run.expect + 1, built.run.record, built.id)
        return True

    def _newest(self, run: str, heads: dict[str, _Head], own: _Head) -> _Head:
        known = self._known.get(run)
        committed = own if known is None or known[0] <= own[0] else (*known, None)
        head = heads.get(run)
        return committed if head is None or head[0] <= committed[0] else head

    async def _commit(self, batch: list[Intent]) -> None:
        if not batch:
            return
        units = [intent.unit for intent in batch if intent.unit is not None]
        try:
            reply = await self._ask_and_commit(batch, units)
        except StoreUnavailable as problem:
            await self._wait_and_repeat(batch, problem)
            return
        except Exception as problem:
            await self._isolate(batch, problem)
            return
        again: list[Intent] = []
        for intent, receipt in zip(batch, reply.receipts, strict=True):
            self._settle(intent, receipt, again)
        self._pending[:0] = again

    async def _ask_and_commit(self, batch: list[Intent], units: list[Unit]) -> CommitReply:
        """One call for both; the worker hears of the answer, or that there was none."""
        worker = self.worker
        freed = Counter(intent.frees for intent in batch if intent.frees is not None)
        ask = worker.ask(freed) if worker is not None else None
        work: ClaimBatch | None = None
        try:
            reply = await self._store.commit(units, ask)
            work = reply.claimed
            if worker is not None and freed:
                worker.free(_ended(batch, reply.receipts), ask)
        finally:
            if worker is not None and ask is not None:
                worker.take(ask, freed, work)
        return reply

    def _settle(self, intent: Intent, receipt: Receipt, again: list[Intent]) -> None:
        unit = intent.unit
        if isinstance(receipt, Conflict) and unit is not None and unit.run is not None:
            intent.unit = None
            intent.version, intent.record = receipt.version, receipt.record
            self._known.pop(unit.run.id, None)
            again.append(intent)
            return
        if isinstance(receipt, Committed) and not receipt.repeated and unit is not None and unit.run is not None:
            self._remember(unit.run.id, unit.run.expect + 1, unit.run.record)
        intent.settle(receipt)

    def _remember(self, run: str, version: int, record: bytes) -> None:
        self._known[run] = (version, record)
        self._known.move_to_end(run)
        if len(self._known) > REMEMBERED_RUNS:
            self._known.popitem(last=False)

    async def _wait_and_repeat(self, batch: list[Intent], problem: StoreUnavailable) -> None:
        """Whether the write happened is unknown; the same units, with the same ids, are safe to send again."""
        waiting = [intent for intent in batch if not intent.future.done()]  # the others' callers have gone away
        for intent in waiting:
            intent.tries += 1
            if self._may_rewind and _ends_unguarded(intent):
                intent.undecide()
        # A command is not kept waiting for a store that is known to be down: its caller is to hear of it soon.
        tries = max((intent.tries for intent in waiting), default=0)
        kept: list[Intent] = []
        for intent in waiting:
            if (intent.patient and not self._closing) or tries < MAX_RETRIES_OF_COMMAND:
                kept.append(intent)
            else:
                intent.fail(problem)
        if tries in (1, 10) or tries % 100 == 0:
            log.warning("the store refuses or does not answer, trying again: %s", problem)
        await asyncio.sleep(min(0.02 * 2 ** min(tries, 8), LONGEST_WAIT))
        self._pending[:0] = kept

    async def _isolate(self, batch: list[Intent], problem: Exception) -> None:
        """One unit the store cannot take: each goes alone, and only that one is told."""
        if len(batch) == 1:
            batch[0].fail(problem)
            return
        for intent in batch:
            await self._commit([intent])


def _ended(batch: list[Intent], receipts: list[Receipt]) -> Counter[str]:
    """The queues of attempts that are over: the others will be decided again. Known before anybody looks for work, not
    when their tasks come to it: a look in between would find no room."""
    ended: Counter[str] = Counter()
    for intent, receipt in zip(batch, receipts, strict=True):
        if intent.frees is not None and isinstance(receipt, Committed | Fenced):
            intent.ended = True
            ended[intent.frees] += 1
    return ended


def _only_end(intents: list[Intent]) -> bool:
    return all(intent.frees is not None for intent in intents)


def _ends_unguarded(intent: Intent) -> bool:
    """Whether it ends an attempt of a run and no version guards it: that the run is over may itself have been lost."""
    unit = intent.unit
    return intent.run is not None and unit is not None and unit.run is None and unit.outcome is not None
