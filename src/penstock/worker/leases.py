"""Keeping leases alive from a thread of its own, so that a busy event loop cannot lose them."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Iterable

from ..core.errors import StoreError
from ..ports.store import WorkQueue
from ..ports.unit import Claim
from .blocked_loop import LONG, LoopWatch

log = logging.getLogger("penstock.leases")

MIN_PAUSE = 0.25  # seconds between renewals that were asked for


class LeaseKeeper:
    """Renews what the worker holds every third of a lease, and says which claims are lost or cancelled."""

    def __init__(
        self, store: WorkQueue, lease_ms: int, held: Callable[[], Iterable[Claim]], lost: Callable[[list[Claim]], None]
    ) -> None:
        self._store = store
        self._lease_ms = lease_ms
        self._held = held
        self._lost = lost
        self._wake = threading.Event()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._main, name="penstock-leases", daemon=True)

    def start(self) -> None:
        """Called on the loop that the handlers share."""
        self._watch = LoopWatch(asyncio.get_running_loop())
        self._thread.start()

    def poke(self) -> None:
        """Looks soon: a run may have been cancelled."""
        self._wake.set()

    def stop(self) -> None:
        self._stop.set()
        self._wake.set()
        self._thread.join()

    def _main(self) -> None:
        third = self._lease_ms / 3000
        looks = max(round(third / LONG), 1)  # from one renewal to the next
        count = 0
        while not self._stop.is_set():
            poked = self._wake.wait(third / looks)
            self._wake.clear()
            count += 1
            if self._stop.is_set():
                return
            if self._held():
                self._watch.look()
            if poked or count >= looks:
                count = 0
                self._renew()
                self._stop.wait(min(MIN_PAUSE, third / 2))

    def _renew(self) -> None:
        claims = list(self._held())
        if not claims:
            return
        try:
            lost = self._store.renew(claims, self._lease_ms)
        except StoreError as problem:
            # The lease may run out meanwhile; the fence then refuses whatever this worker still tries to record.
            log.warning("could not renew %d leases: %s", len(claims), problem)
            return
        except Exception:  # this thread is not to end with it: no lease would be renewed any more
            log.exception("could not renew %d leases", len(claims))
            return
        if lost:
            self._lost(lost)
