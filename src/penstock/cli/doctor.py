"""`penstock doctor` and `penstock doctor RUN`."""

from __future__ import annotations

import asyncio
import sys
from contextlib import redirect_stdout
from dataclasses import asdict
from typing import Any

from ..app.diagnosis import why
from ..core.errors import PenstockError
from .checks import Check, all_checks
from .errors import shown_as
from .options import USUAL_PLACE, Common
from .output import print_json, unicode_out
from .session import acting_app


class Unwell(PenstockError):
    """`penstock doctor` has found something to mend."""

    code = "unwell"


def doctor(run: str | None = None, /, *, common: Common = USUAL_PLACE) -> int:
    """Look for what is wrong here: settings, store, versions, clock, disk, worker files, runs nobody will go on with.

    With a run's id it says why that run is not moving.

    Parameters
    ----------
    run
        The run's id.
    """
    if run is not None:
        _answer(run, asyncio.run(_why(common, run)), common.json)
        return 0
    with redirect_stdout(sys.stderr):  # a worker file may print while it is imported
        checks = asyncio.run(all_checks(common))
    if common.json:
        print_json({"ok": all(check.ok for check in checks), "checks": [asdict(check) for check in checks]})
    else:
        _show(checks)
    wrong = sum(not check.ok for check in checks)
    if wrong:
        raise Unwell(f"{wrong} of {len(checks)} checks found something to mend, see above")
    return 0


async def _why(common: Common, run: str) -> list[str]:
    with redirect_stdout(sys.stderr):
        async with acting_app(common) as app:
            return await why(app, run)


def _answer(run: str, reasons: list[str], json: bool) -> None:
    if json:
        print_json({"run": run, "reasons": reasons})
    else:
        print("\n".join(f"Run {run}: {reason}." for reason in reasons))


def _show(checks: list[Check]) -> None:
    good, bad = ("✓", "✗") if unicode_out() else ("+", "x")
    width = max(len(check.name) for check in checks)
    lines: list[tuple[str, Any]] = [(f"{good if c.ok else bad} {c.name:<{width}}  {c.found}", c.ok) for c in checks]
    for line, ok in lines:
        print(shown_as(line, "32" if ok else "31"))
