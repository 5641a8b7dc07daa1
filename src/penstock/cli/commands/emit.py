"""`penstock emit KIND`."""

from __future__ import annotations

import asyncio
import sys
from contextlib import redirect_stdout
from typing import Annotated, Any

from cyclopts import Parameter

from ..options import COMMON_DEFAULTS, CommonOptions
from ..output import SecretFilter
from ..parse import read_input
from ..session import build_admin_app, build_worker_app, refuse_memory_store
from ..tables import print_result


def emit(
    kind: str,
    /,
    *,
    data: Annotated[str | None, Parameter(allow_leading_hyphen=True, help="Event data: JSON, @FILE or -.")] = None,
    run: Annotated[
        str | None,
        Parameter(help="Emit to this run; the event can start its steps. Matching waits of other runs resolve too."),
    ] = None,
    key: Annotated[str | None, Parameter(help="Idempotency key. The same key emits only one event.")] = None,
    common: CommonOptions = COMMON_DEFAULTS,
) -> int:
    """Emit an event, globally or to one run.

    Parameters
    ----------
    kind
        The event's kind, such as payment.confirmed.
    """
    value = read_input(data, "--data")
    with redirect_stdout(sys.stderr):  # a worker file may print while it is imported
        emitted = asyncio.run(_emit(common, kind, value, run, key))
    where = f"to run {run}" if run is not None else "(global)"
    text = f"Emitted {kind} {where}." if emitted else f"Nothing was emitted: key {key!r} was used before."
    shown = SecretFilter(common, reveal=False).redact_value("data", value)
    print_result(text, {"kind": kind, "run": run, "data": shown, "emitted": emitted}, json=common.json)
    return 0


async def _emit(common: CommonOptions, kind: str, data: Any, run: str | None, key: str | None) -> bool:
    refuse_memory_store(common)
    async with build_worker_app(common) if run is None else build_admin_app(common) as app:
        if run is not None:
            # Which steps the event starts is known only with the flow's code.
            app.registry.flow((await app.runs.get(run)).name)
        return await app.emit(kind, data, run=run, key=key) is not False
