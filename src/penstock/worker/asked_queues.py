"""Which queues a claim asks for: all of a few, and of many those that may have a job.

To ask for a queue costs the same whether it has a job or not, so a worker of a thousand queues would spend its time on
empty ones. A store says which queues it has left without a due job; they are not asked again until a signal names them.
Nothing depends on signals: all queues are asked, some at a time, when the earliest due time comes and every few
seconds.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from typing import Generic, TypeVar

from ..ports.unit import ClaimRequest

ALWAYS_ASKED = 8  # so many queues are asked by every claim
MAX_ASKED = 64
ASK_ALL_S = 5.0
ANY_TOPIC = "*"
PREFIX = "queue:"

T = TypeVar("T")


class AskedQueues(Generic[T]):
    """The queues of a worker, with their limits, and which of them may have a job."""

    def __init__(self, queues: Mapping[str, T]) -> None:
        self.all = queues
        self.are_few = len(queues) <= ALWAYS_ASKED
        self._hot = dict(queues)  # may have a job; those that were asked last are at the end
        self._unasked = dict.fromkeys(queues)  # of them, those that no request has named since they are hot
        self._asks_all = False
        self._ask_all_at = 0.0  # by the loop's time
        self._numbers = itertools.count(1)
        self._signalled: dict[str, int] = {}  # when each was named last
        self._everything = 0  # when a signal stood for any
        self._requests: dict[int, int] = {}  # by request in flight, when it was made

    @property
    def has_unasked(self) -> bool:
        """Whether a queue may have a job and was not asked for it."""
        return bool(self._unasked) and not self.are_few

    def note_signals(self, topics: Iterable[str]) -> None:
        """Take note that queues may have a job."""
        if self.are_few:
            return
        now = next(self._numbers)
        for topic in topics:
            queue = topic.removeprefix(PREFIX)
            if topic == ANY_TOPIC:
                self._everything = now
                self._mark_all()
            elif queue in self.all:
                self._signalled[queue] = now
                self._hot[queue] = self.all[queue]
                self._unasked[queue] = None

    def note_room(self, queues: Iterable[str], request: ClaimRequest | None) -> None:
        """Take note that slots of these queues are free, which the request may not know."""
        if self.are_few:
            return
        known = {demand.queue for demand in request.queues} if request is not None else ()
        self._unasked.update((queue, None) for queue in queues if queue in self._hot and queue not in known)

    def _mark_all(self) -> None:
        self._hot = dict(self.all)
        self._unasked = dict.fromkeys(self.all)

    def ask_all(self) -> None:
        """Ask all queues with the next request."""
        self._asks_all = True

    def choose(self, now: float, is_due: bool) -> Mapping[str, T]:
        """Return the queues to ask. With `is_due`, any of them may have a job that no signal names."""
        if self.are_few or self._asks_all:
            self._asks_all = False
            return self.all
        if is_due or now >= self._ask_all_at:
            self._ask_all_at = now + ASK_ALL_S
            self._mark_all()
        if len(self._hot) <= MAX_ASKED:
            return dict(self._hot)
        chosen = dict.fromkeys(itertools.islice(self._unasked, MAX_ASKED))
        chosen.update(dict.fromkeys(itertools.islice(self._hot, MAX_ASKED - len(chosen))))
        for queue in chosen:
            self._hot[queue] = self._hot.pop(queue)
        return {queue: self.all[queue] for queue in chosen}

    def note_request(self, request: ClaimRequest, asked: Iterable[str]) -> None:
        """Remember a request until it is answered. Not all that were to be asked are in it: some have no free slot."""
        if self.are_few:
            return
        self._requests[id(request)] = next(self._numbers)
        for queue in asked:
            self._unasked.pop(queue, None)

    def note_answer(self, request: ClaimRequest, drained: Iterable[str], *, is_full: bool) -> None:
        """Take note of the queues without a due job. If there was room for no more jobs than the answer has, the store
        may not have looked into all queues."""
        made = self._requests.pop(id(request), 0)
        if made and is_full:
            self._unasked.update((demand.queue, None) for demand in request.queues if demand.queue in self._hot)
        if made <= self._everything:
            return
        for queue in drained:
            if self._signalled.get(queue, 0) < made:  # otherwise a job may have come after the store looked
                self._hot.pop(queue, None)
                self._unasked.pop(queue, None)
