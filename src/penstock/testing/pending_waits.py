"""Pending waits, for tests and their error messages."""

from __future__ import annotations

from ..app.waits import Waits, WaitView
from ..durable.wait_records import EVENT

PAGE = 200


async def list_pending_waits(waits: Waits, run: str | None = None) -> list[WaitView]:
    """Return every pending wait, or those of one run."""
    found: list[WaitView] = []
    after: str | None = None
    while page := await waits.list(run=run, after=after, limit=PAGE):
        after = page[-1].id
        found += page
    return sorted(found, key=lambda wait: (wait.run, wait.step or "", wait.n, wait.kind, wait.name, wait.id))


def describe_wait(wait: WaitView) -> str:
    """Describe a wait in words."""
    wanted = f" with {wait.match}" if wait.match else ""
    return f"step {wait.step!r} of run {wait.run} waits for the {wait.kind} {wait.event or wait.name!r}{wanted}"


def suggest_answer(wait: WaitView) -> str:
    """Suggest the call that resolves a wait."""
    call = f"emit({wait.event!r}, …)" if wait.kind == EVENT else f"fire({wait.name!r}, …)"
    return f"resolve it with await app.{call}"
