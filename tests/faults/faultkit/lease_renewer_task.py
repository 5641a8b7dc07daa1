"""The lease renewer as a task: under virtual time, a thread that sleeps real seconds would never renew."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from penstock.core.errors import StoreError
from penstock.core.outage_retry import OutageLog
from penstock.ports.store import WorkQueue
from penstock.ports.unit import Claim


class LeaseRenewerTask:
    """Does what `worker.leases.LeaseRenewer` does, as a task on the loop."""

    def __init__(
        self,
        store: WorkQueue,
        lease_ms: int,
        held: Callable[[], Iterable[Claim]],
        lost: Callable[[list[Claim]], None],
        _outages: OutageLog,
    ) -> None:
        self._store = store
        self._lease_ms = lease_ms
        self._held = held
        self._lost = lost
        self._wake = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = self._loop.create_task(self._main())

    def renew_soon(self) -> None:
        self._wake.set()

    def stop(self) -> None:
        if self._task is not None:
            self._loop.call_soon_threadsafe(self._task.cancel)

    async def _main(self) -> None:
        while True:
            try:
                async with asyncio.timeout(self._lease_ms / 3000):
                    await self._wake.wait()
            except TimeoutError:
                pass
            self._wake.clear()
            claims = list(self._held())
            if claims:
                try:
                    lost = await self._loop.run_in_executor(None, self._store.renew, claims, self._lease_ms)
                except StoreError:
                    continue
                if lost:
                    self._lost(lost)
            await asyncio.sleep(0.05)
