"""How many jobs a worker takes: its slots, the claims it has requested, and the jobs it prefetches.

A slot is free when its handler ends, but the store must still record the end and hand out the next job. With a remote
store and short handlers, slots would be empty most of the time. So the worker prefetches: it claims a few jobs more
than it has slots, and starts one the moment a handler ends. Never more handlers run than there are slots.

A prefetched job is claimed, so no other worker can run it. The worker therefore prefetches only while every handler is
short, and releases jobs that waited too long for a slot.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence

from ..ports.unit import Claim, ClaimRequest, QueueDemand, RateLimit
from .run_scope import WorkScope

SHORT_HANDLER_S = 0.02  # a handler that takes longer stops prefetching: the round trip is a small part of its time
SHORT_HANDLERS_IN_A_ROW = 64  # before the worker starts to prefetch
PREFETCH_MAX_WAIT_S = 0.1  # a prefetched job that waited longer for a slot is released
PREFETCH_PAUSE_S = 30.0  # no prefetching after such a release
MAX_PREFETCH_PER_SLOT = 4


class Prefetcher:
    """Tracks running handlers and prefetched jobs, and decides how many jobs to prefetch."""

    def __init__(self, slots: int, now: Callable[[], float], *, max_held: int) -> None:
        self._slots = slots
        self._now = now
        self._max_held = max_held  # running and prefetched jobs; a worker with more slots than this never prefetches
        # When the handler of each claim token started, oldest first. None until the event loop gets to it: a slot is
        # taken before that, and the time in between says nothing about the handler.
        self._running: dict[str, float | None] = {}
        self._running_of_queue: Counter[str] = Counter()
        self._held: deque[tuple[Claim, float]] = deque()
        self._short_in_a_row = 0
        self._mean_s = 0.0  # moving average of handler durations
        self._paused_until = 0.0

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def held(self) -> int:
        """Return how many prefetched jobs wait for a slot."""
        return len(self._held)

    def limit(self, slots: int) -> int:
        """Return how many jobs beyond `slots` may be held now. 0 for a single slot: with a concurrency of 1, a job
        starts only after the one before it is recorded."""
        if self._short_in_a_row < SHORT_HANDLERS_IN_A_ROW or slots < 2:
            return 0
        now = self._now()
        oldest = next(iter(self._running.values()), None)
        if now < self._paused_until or (oldest is not None and now - oldest > SHORT_HANDLER_S):
            return 0
        # CPU-bound handlers run one after the other whatever the slots, so the last held job waits for all of them.
        in_time = int(PREFETCH_MAX_WAIT_S / 2 / self._mean_s) if self._mean_s > 0 else self._max_held
        return max(0, min(MAX_PREFETCH_PER_SLOT * slots, self._max_held - slots, in_time))

    def has_slot(self, queue: str, queue_slots: int) -> bool:
        """Return whether a handler of this queue may start; `queue_slots` is the queue's own concurrency."""
        return len(self._running) < self._slots and self._running_of_queue[queue] < queue_slots

    def occupy(self, claim: Claim) -> None:
        """Take a slot for the claim."""
        self._running[claim.token] = None
        self._running_of_queue[claim.queue] += 1

    def start(self, claim: Claim) -> None:
        """Note that the handler starts now. A claim that is only released has no slot."""
        if claim.token in self._running:
            self._running[claim.token] = self._now()

    def vacate(self, claim: Claim) -> None:
        """Free the claim's slot and measure its handler."""
        if claim.token not in self._running:
            return
        started = self._running.pop(claim.token)
        self._running_of_queue[claim.queue] -= 1
        if started is None:
            return  # its handler was not called
        took = self._now() - started
        self._mean_s += (took - self._mean_s) / 16
        self._short_in_a_row = self._short_in_a_row + 1 if took <= SHORT_HANDLER_S else 0

    def hold(self, claim: Claim) -> None:
        """Keep a prefetched claim for the next free slot."""
        self._held.append((claim, self._now()))

    def next(self, slots_of: Callable[[str], int]) -> Claim | None:
        """Take the first held claim that has a free slot."""
        if len(self._running) >= self._slots:
            return None
        for n, (claim, _) in enumerate(self._held):
            if self._running_of_queue[claim.queue] < slots_of(claim.queue):
                del self._held[n]
                return claim
        return None

    def is_overdue(self) -> bool:
        """Return whether a held claim has waited too long for a slot."""
        return bool(self._held) and self._now() - self._held[0][1] > PREFETCH_MAX_WAIT_S

    def remove(self, which: Callable[[Claim], bool]) -> list[Claim]:
        """Take out some held claims, newest first: each is released to the front of its queue."""
        found = [claim for claim, _ in reversed(self._held) if which(claim)]
        if found:
            self._held = deque(one for one in self._held if not which(one[0]))
        return found

    def clear(self) -> list[Claim]:
        """Take out all held claims, newest first, and pause prefetching."""
        found = [claim for claim, _ in reversed(self._held)]
        self._held.clear()
        self._short_in_a_row, self._paused_until = 0, self._now() + PREFETCH_PAUSE_S
        return found


class QueueLimits:
    """How much of one queue this worker takes."""

    def __init__(self, concurrency: int, rate: RateLimit | None = None, max_active: int | None = None) -> None:
        self.concurrency = concurrency
        self.rate = rate
        self.max_active = max_active


class CapacityTracker:
    """Counts held claims and requested ones. Several requests may be in flight; each reserves its slots."""

    def __init__(
        self, worker: str, concurrency: int, lease_ms: int, prefetcher: Prefetcher, scope: WorkScope | None = None
    ) -> None:
        self.reserved = 0  # slots reserved for answers; a request may name several queues for one slot
        self._worker = worker
        self._scope = scope
        self._concurrency = concurrency
        self._lease_ms = lease_ms
        self._prefetcher = prefetcher
        self._held: Counter[str] = Counter()
        self._total_held = 0
        self._reserved: Counter[str] = Counter()  # the same by queue
        self._finishing: Counter[str] = Counter()  # attempts whose slots were counted as free in requests in flight
        self._polls = 0
        self._polls_before: dict[int, int] = {}  # for each request in flight: `_polls` when it was made
        self._turn = 0

    def note_poll(self) -> None:
        """Note that the worker polls for work. A request in flight may have been answered before that work came."""
        self._polls += 1

    def request(self, queues: Mapping[str, QueueLimits], finishing: Counter[str]) -> ClaimRequest | None:
        """Request what there is room for, and reserve it. `finishing` counts the slots that the same commit frees."""
        total = self._concurrency + self._prefetcher.limit(self._concurrency)
        free = total - self._total_held - self.reserved + self._finishing.total() + finishing.total()
        demands = []
        for queue, limits in queues.items() if free > 0 else ():
            room = min(self._room(queue, limits) + finishing[queue], free)
            if room > 0:
                demands.append(QueueDemand(queue, room, limits.rate, limits.max_active))
        if not demands:
            return None
        # The store serves the first queue first: rotate, so that none starves.
        self._turn = (self._turn + 1) % len(demands)
        for demand in demands:
            self._reserved[demand.queue] += demand.limit
        self.reserved += free
        self._finishing.update(finishing)
        only = self._scope.filter if self._scope is not None else None
        turned = (*demands[self._turn :], *demands[: self._turn])
        request = ClaimRequest(turned, self._lease_ms, self._worker, free, only)
        self._polls_before[id(request)] = self._polls
        return request

    def _room(self, queue: str, limits: QueueLimits) -> int:
        total = limits.concurrency
        if limits.rate is None and limits.max_active is None:
            total += self._prefetcher.limit(total)
        return total - self._held[queue] - self._reserved[queue] + self._finishing[queue]

    def settle(self, request: ClaimRequest, finishing: Counter[str], claims: Sequence[Claim]) -> bool:
        """Count the claims of an answer. Return whether to poll again: there is room, and a poll found none meanwhile
        because this request had reserved it."""
        self._finishing.subtract(finishing)
        for demand in request.queues:
            self._reserved[demand.queue] -= demand.limit
        free = request.limit or 0
        self.reserved -= free
        for claim in claims:
            self._held[claim.queue] += 1
        self._total_held += len(claims)
        has_polled = self._polls_before.pop(id(request), self._polls) < self._polls
        return has_polled and len(claims) < free

    def release(self, ended: Counter[str], request: ClaimRequest | None) -> bool:
        """Free the slots of ended attempts. Return whether to poll: the commit requested nothing for one of them."""
        self._held.subtract(ended)
        self._total_held -= ended.total()
        requested = {demand.queue for demand in request.queues} if request is not None else set()
        return not requested.issuperset(ended)
