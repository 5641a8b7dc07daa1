"""What a worker asks the store for: work for the slots that are free, no slot for two asks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from ..ports.unit import Ask, Claim, RateLimit, Want
from .read_ahead import ReadAhead


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

    def ask(self, queues: Mapping[str, QueueLimits], finishing: Counter[str]) -> Ask | None:
        """What there is room for, counting the slots that the commit on its way sets free."""
        most = self._concurrency + self._ahead.most(self._concurrency)
        free = most - self._all_held - self.promised + self._leaving.total() + finishing.total()
        wants = []
        for queue, limits in queues.items() if free > 0 else ():
            room = min(self._room(queue, limits) + finishing[queue], free)
            if room > 0:
                wants.append(Want(queue, room, limits.rate, limits.max_active))
        if not wants:
            return None
        # Whoever is first in line is served first: take turns.
        self._turn = (self._turn + 1) % len(wants)
        for want in wants:
            self._kept[want.queue] += want.limit
        self.promised += free
        self._leaving.update(finishing)
        ask = Ask((*wants[self._turn :], *wants[: self._turn]), self._lease_ms, self._worker, free)
        self._under_way[id(ask)] = self._looks
        return ask

    def _room(self, queue: str, limits: QueueLimits) -> int:
        most = limits.concurrency
        if limits.rate is None and limits.max_active is None:
            most += self._ahead.most(most)
        return most - self._held[queue] - self._kept[queue] + self._leaving[queue]

    def answered(self, ask: Ask, finishing: Counter[str], claims: Sequence[Claim]) -> bool:
        """Holds what came; whether it leaves room that somebody has looked for meanwhile, in vain."""
        self._leaving.subtract(finishing)
        for want in ask.wants:
            self._kept[want.queue] -= want.limit
        free = ask.limit or 0
        self.promised -= free
        for claim in claims:
            self._held[claim.queue] += 1
        self._all_held += len(claims)
        looked = self._under_way.pop(id(ask), self._looks) < self._looks
        return looked and len(claims) < free

    def left(self, ended: Counter[str], ask: Ask | None) -> bool:
        """So many attempts of each queue are over; whether there is one whose slot their commit did not ask for."""
        self._held.subtract(ended)
        self._all_held -= ended.total()
        asked = {want.queue for want in ask.wants} if ask is not None else set()
        return not asked.issuperset(ended)
