"""`penstock check`."""

from __future__ import annotations

import asyncio
import sys
from contextlib import redirect_stdout
from typing import Annotated

import msgspec
from cyclopts import Parameter

from ..app.preflight import PreflightReport
from ..settings import Settings
from .errors import warn
from .options import USUAL_PLACE, Common
from .output import print_json
from .session import acting_app, check_dir, check_kept
from .tables import counted


def check(
    *,
    flow: Annotated[str | None, Parameter(help="Only runs of this flow.")] = None,
    common: Common = USUAL_PLACE,
) -> int:
    """Rehearse the open runs of the store with the worker files as they are now; say which could not go on.

    Each step that waits is run again on what is recorded of it, up to the first call that is not. Nothing is written or
    emitted and no function given to ctx.run is called, but handlers' code outside of those is executed. Exits with 1 if
    there is one.
    """
    check_kept(common)
    if not common.json:
        warn("Handlers are run up to where their record ends; what they do outside ctx.run is done.")
    with redirect_stdout(sys.stderr):  # handlers may print
        checked = asyncio.run(_check(common, flow))
    _show(checked, common.json)
    return 1 if checked.broken else 0


async def _check(common: Common, flow: str | None) -> PreflightReport:
    check_dir(Settings.load({"dir": common.dir}).dir)  # without code every run would break
    async with acting_app(common) as app:
        return await app.runs.preflight(flow)


def _show(checked: PreflightReport, json: bool) -> None:
    if json:
        troubles = [{**msgspec.to_builtins(one), "breaks": one.breaks} for one in checked.troubles]
        print_json({"ok": not checked.broken, "runs": checked.runs, "steps": checked.steps, "troubles": troubles})
        return
    for one in checked.troubles:
        step = one.step if one.n == 1 else f"{one.step}#{one.n}"
        print(f"run {one.run}, step {step}: {one.reason} [{one.code}]")
    looked = f"{counted(checked.steps, 'open step')} of {counted(checked.runs, 'open run')}"
    print(f"{looked}: {f'{len(checked.broken)} could not' if checked.broken else 'all can'} go on with this code.")
