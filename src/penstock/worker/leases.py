"""Renewing leases on a thread of its own, so that a busy event loop cannot lose them."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Iterable, Sequence

from ..core.errors import StoreError
from ..core.outage_retry import OutageLog
from ..ports.store import WorkQueue
from ..ports.unit import Claim
from .blocked_loop import BLOCKED_AFTER_S, BlockedLoopDetector

log = logging.getLogger("penstock.leases")

MIN_RENEWAL_PAUSE_S = 0.25  # between renewals, however often `renew_soon` is called


class LeaseRenewer:
    """Renews the worker's leases every third of a lease, and reports the claims that are lost or cancelled."""

    def __init__(
        self,
        store: WorkQueue,
        lease_ms: int,
        held: Callable[[], Iterable[Claim]],
        lost: Callable[[list[Claim]], None],
        outages: OutageLog,
    ) -> None:
        self._store = store
        self._outages = outages
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
                count = 0 if self._renew() else checks
                self._stop.wait(min(MIN_RENEWAL_PAUSE_S, interval / 2))

    def _renew(self) -> bool:
        """Renew every lease. Return False if the store did not answer: try again soon."""
        claims = list(self._held())
        if not claims:
            return True
        try:
            lost = self._store.renew(claims, self._lease_ms)
        except StoreError as problem:
            # If the leases expire meanwhile, the fence refuses what this worker still tries to record.
            self._outages.report_failure(f"could not renew {_count(claims)}, retrying", problem)
            return False
        except Exception:  # the thread must survive: without it no lease is renewed
            log.exception("could not renew %s", _count(claims))
            return True
        if lost:
            self._lost(lost)
        return True


def _count(claims: Sequence[Claim]) -> str:
    return f"{len(claims)} lease{'s' * (len(claims) != 1)}"
