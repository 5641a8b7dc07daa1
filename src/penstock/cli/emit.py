"""`penstock emit KIND`."""

from __future__ import annotations

import asyncio
import sys
from contextlib import redirect_stdout
from typing import Annotated, Any

from cyclopts import Parameter

from .options import USUAL_PLACE, Common
from .parse import read_input
from .session import acting_app, check_kept, working_app
from .tables import done


def emit(
    kind: str,
    /,
    *,
    data: Annotated[str | None, Parameter(allow_leading_hyphen=True, help="Its data: JSON, @FILE, -.")] = None,
    run: Annotated[
        str | None,
        Parameter(
            help="As an event of this run, whose steps it may start. Waits of other runs are woken all the same."
        ),
    ] = None,
    key: Annotated[str | None, Parameter(help="Idempotency key: the same key is taken once.")] = None,
    common: Common = USUAL_PLACE,
) -> int:
    """Say that something happened, to a run or to everyone.

    Parameters
    ----------
    kind
        What happened, such as payment.confirmed.
    """
    value = read_input(data, "--data")
    with redirect_stdout(sys.stderr):  # a worker file may print while it is imported
        asyncio.run(_emit(common, kind, value, run, key))
    done(f"Said {kind} to {run or 'everyone'}.", {"kind": kind, "run": run, "data": value}, json=common.json)
    return 0


async def _emit(common: Common, kind: str, data: Any, run: str | None, key: str | None) -> None:
    check_kept(common)
    async with working_app(common) if run is None else acting_app(common) as app:
        if run is not None:
            # Without the flow's code nobody here knows what the event starts.
            app.registry.flow((await app.runs.get(run)).name)
        await app.emit(kind, data, run=run, key=key)
