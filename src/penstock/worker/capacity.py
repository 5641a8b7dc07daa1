"""Reading ahead: jobs that are claimed before there is a slot for them, while every handler is quick.

A slot is free when its handler has ended, but the store has yet to record that end and to hand out the next job. Where
it is at the other end of a wire, quick handlers leave the slots empty for most of the time. So some jobs are held ready
beyond the slots, and begin the moment a handler ends. Never more handlers run at once than there are slots.

A job that is held ready is one that nobody else works on. So none is while handlers take longer than a moment, and
those that have waited too long all the same go back to their queue.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence

from ..ports.unit import Claim, ClaimRequest, QueueDemand, RateLimit

QUICK = 0.005  # seconds a handler may take
PROOF = 64  # quick ones in a row before anything is read ahead
PATIENCE = 0.1  # seconds a job waits for a slot before it goes back
PAUSE = 30.0  # seconds without reading ahead after that
FOR_EACH = 4  # ready ones for a slot, at most


class ReadAhead:
    """Which handlers run, which jobs are ready, and how many of those there may be."""

    def __init__(self, slots: int, now: Callable[[], float], *, together: int) -> None:
        self._slots = slots
        self._now = now
        self._together = together  # jobs in slots and ready; none are read ahead by who has more slots than that
        # Tokens in slots, the oldest first, and when their handlers began: a slot is taken before the loop comes to it,
        # and what it does until then says nothing of the handler.
        self._running: dict[str, float | None] = {}
        self._of_queue: Counter[str] = Counter()
        self._ready: deque[tuple[Claim, float]] = deque()
        self._quick = 0
        self._usual = 0.0  # seconds a handler takes, lately
        self._not_before = 0.0

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def ready(self) -> int:
        return len(self._ready)

    def most(self, slots: int) -> int:
        """How many jobs more than these slots may be held now. Who works on one at a time relies on it: the next one
        begins when the last is recorded."""
        if self._quick < PROOF or slots < 2:
            return 0
        now = self._now()
        oldest = next(iter(self._running.values()), None)
        if now < self._not_before or (oldest is not None and now - oldest > QUICK):
            return 0
        # Handlers that compute run one after the other whatever the slots: the last one ready is not to wait too long.
        bearable = int(PATIENCE / 2 / self._usual) if self._usual > 0 else self._together
        return max(0, min(FOR_EACH * slots, self._together - slots, bearable))

    def has_slot(self, queue: str, slots: int) -> bool:
        """Whether a handler of this queue, which has so many of all slots, may begin."""
        return len(self._running) < self._slots and self._of_queue[queue] < slots

    def enter(self, claim: Claim) -> None:
        """Takes a slot for it."""
        self._running[claim.token] = None
        self._of_queue[claim.queue] += 1

    def began(self, claim: Claim) -> None:
        if claim.token in self._running:  # what only goes back has no slot
            self._running[claim.token] = self._now()

    def ended(self, claim: Claim) -> None:
        """Its slot is free."""
        if claim.token not in self._running:
            return
        began = self._running.pop(claim.token)
        self._of_queue[claim.queue] -= 1
        if began is None:
            return  # its handler was not called
        took = self._now() - began
        self._usual += (took - self._usual) / 16
        self._quick = self._quick + 1 if took <= QUICK else 0

    def hold(self, claim: Claim) -> None:
        """Keeps it ready for the next slot."""
        self._ready.append((claim, self._now()))

    def next(self, slots_of: Callable[[str], int]) -> Claim | None:
        """The first one there is a slot for."""
        if len(self._running) >= self._slots:
            return None
        for n, (claim, _) in enumerate(self._ready):
            if self._of_queue[claim.queue] < slots_of(claim.queue):
                del self._ready[n]
                return claim
        return None

    def overdue(self) -> bool:
        """Whether one has waited for too long."""
        return bool(self._ready) and self._now() - self._ready[0][1] > PATIENCE

    def remove(self, which: Callable[[Claim], bool]) -> list[Claim]:
        """Takes out some of those that are ready, the last one first."""
        found = [claim for claim, _ in reversed(self._ready) if which(claim)]
        if found:
            self._ready = deque(one for one in self._ready if not which(one[0]))
        return found

    def clear(self) -> list[Claim]:
        """Takes out all that are ready, to go back; none is read ahead for a while. The last one comes first: each goes
        back to the front of its queue."""
        found = [claim for claim, _ in reversed(self._ready)]
        self._ready.clear()
        self._quick, self._not_before = 0, self._now() + PAUSE
        return found


class QueueLimits:
    """How much of one queue this worker takes."""

    def __init__(self, concurrency: int, rate: RateLimit | None = None, max_active: int | None = None) -> None:
        self.concurrency = concurrency
        self.rate = rate
        self.max_active = max_active


class Asking:
    """Counts what is held and what is asked for. Several asks may be under way: each keeps its slots for its answer."""

    def __init__(self, worker: str, concurrency: int, lease_ms: int, ahead: ReadAhead) -> None:
        self.promised = 0  # slots of the worker that are kept for answers: one ask may want the same for several queues
        self._worker = worker
        self._concurrency = concurrency
        self._lease_ms = lease_ms
        self._ahead = ahead
        self._held: Counter[str] = Counter()
        self._all_held = 0
        self._kept: Counter[str] = Counter()  # slots of each queue that are kept for answers
        self._leaving: Counter[str] = Counter()  # attempts that end with those asks: their slots were counted there
        self._looks = 0
        self._under_way: dict[int, int] = {}  # asks that are not answered yet, and how many looks there were before
        self._turn = 0

    def look(self) -> None:
        """Somebody has heard of work and is about to ask. What is asked for already may have been answered before."""
        self._looks += 1

    def ask(self, queues: Mapping[str, QueueLimits], finishing: Counter[str]) -> ClaimRequest | None:
        """What there is room for, counting the slots that the commit on its way sets free."""
        most = self._concurrency + self._ahead.most(self._concurrency)
        free = most - self._all_held - self.promised + self._leaving.total() + finishing.total()
        wants = []
        for queue, limits in queues.items() if free > 0 else ():
            room = min(self._room(queue, limits) + finishing[queue], free)
            if room > 0:
                wants.append(QueueDemand(queue, room, limits.rate, limits.max_active))
        if not wants:
            return None
        # Whoever is first in line is served first: take turns.
        self._turn = (self._turn + 1) % len(wants)
        for want in wants:
            self._kept[want.queue] += want.limit
        self.promised += free
        self._leaving.update(finishing)
        ask = ClaimRequest((*wants[self._turn :], *wants[: self._turn]), self._lease_ms, self._worker, free)
        self._under_way[id(ask)] = self._looks
        return ask

    def _room(self, queue: str, limits: QueueLimits) -> int:
        most = limits.concurrency
        if limits.rate is None and limits.max_active is None:
            most += self._ahead.most(most)
        return most - self._held[queue] - self._kept[queue] + self._leaving[queue]

    def answered(self, ask: ClaimRequest, finishing: Counter[str], claims: Sequence[Claim]) -> bool:
        """Holds what came; whether it leaves room that somebody has looked for meanwhile, in vain."""
        self._leaving.subtract(finishing)
        for want in ask.queues:
            self._kept[want.queue] -= want.limit
        free = ask.limit or 0
        self.promised -= free
        for claim in claims:
            self._held[claim.queue] += 1
        self._all_held += len(claims)
        looked = self._under_way.pop(id(ask), self._looks) < self._looks
        return looked and len(claims) < free

    def left(self, ended: Counter[str], ask: ClaimRequest | None) -> bool:
        """So many attempts of each queue are over; whether there is one whose slot their commit did not ask for."""
        self._held.subtract(ended)
        self._all_held -= ended.total()
        asked = {want.queue for want in ask.queues} if ask is not None else set()
        return not asked.issuperset(ended)
