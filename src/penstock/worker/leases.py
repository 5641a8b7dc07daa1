"""Renewing leases on a thread of its own, so that a busy event loop cannot lose them."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Iterable

from ..core.errors import StoreError
from ..ports.store import WorkQueue
from ..ports.unit import Claim
from .blocked_loop import BLOCKED_AFTER_S, BlockedLoopDetector

log = logging.getLogger("penstock.leases")

MIN_RENEWAL_PAUSE_S = 0.25  # between renewals, however often `renew_soon` is called


class LeaseRenewer:
    """Renews the worker's leases every third of a lease, and reports the claims that are lost or cancelled."""

    def __init__(
        self, store: WorkQueue, lease_ms: int, held: Callable[[], Iterable[Claim]], lost: Callable[[list[Claim]], None]
    ) -> None:
        self._store = store
        self._lease_ms = lease_ms
        self._held = held
        self._lost = lost
        self._wake = threading.Event()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="penstock-leases", daemon=True)

    def start(self) -> None:
        """Start the thread. Call it on the event loop that runs the handlers."""
        self._detector = BlockedLoopDetector(asyncio.get_running_loop())
        self._thread.start()

    def renew_soon(self) -> None:
        """Renew now: the answer says which runs were cancelled."""
        self._wake.set()

    def stop(self) -> None:
        """Stop the thread and wait for it."""
        self._stop.set()
        self._wake.set()
        self._thread.join()

    def _run(self) -> None:
        interval = self._lease_ms / 3000
        checks = max(round(interval / BLOCKED_AFTER_S), 1)  # of the event loop, from one renewal to the next
        count = 0
        while not self._stop.is_set():
            is_urgent = self._wake.wait(interval / checks)
            self._wake.clear()
            count += 1
            if self._stop.is_set():
                return
            if self._held():
                self._detector.check()
            if is_urgent or count >= checks:
                count = 0
                self._renew()
                self._stop.wait(min(MIN_RENEWAL_PAUSE_S, interval / 2))

    def _renew(self) -> None:
        claims = list(self._held())
        if not claims:
            return
        try:
            lost = self._store.renew(claims, self._lease_ms)
        except StoreError as problem:
            # If the leases expire meanwhile, the fence refuses what this worker still tries to record.
            log.warning("could not renew %d leases: %s", len(claims), problem)
            return
        except Exception:  # the thread must survive: without it no lease is renewed
            log.exception("could not renew %d leases", len(claims))
            return
        if lost:
            self._lost(lost)
