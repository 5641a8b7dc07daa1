"""Evaluates the alert rules once in every interval, in one of all workers."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable

from ..core.clock import Clock
from ..core.errors import StoreError
from ..core.outage_retry import OutageLog
from .alerts import Alerts

log = logging.getLogger("penstock.alerts")
MAX_LATE_S = 1.0  # workers of one moment look one after the other


class AlertService:
    """Takes a turn in each interval; the store's compare-and-set lets one worker evaluate it."""

    def __init__(self, alerts: Alerts, clock: Clock, interval_ms: int, outages: OutageLog) -> None:
        self._alerts = alerts
        self._clock = clock
        self._interval_ms = interval_ms
        self._outages = outages

    async def run(self) -> None:
        """Evaluate until cancelled."""
        while True:
            now = self._clock.now_ms()
            try:
                await self._alerts._take_turn(now // self._interval_ms)
                self._outages.report_answer()
            except StoreError as problem:
                self._outages.report_failure("cannot evaluate the alert rules, retrying", problem)
            rest_ms = self._interval_ms - self._clock.now_ms() % self._interval_ms
            await asyncio.sleep(rest_ms / 1000 + random.random() * MAX_LATE_S)


ServiceFactory = Callable[[], AlertService | None]
