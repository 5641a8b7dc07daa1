"""`penstock emit KIND`."""

from __future__ import annotations

import asyncio
import sys
from contextlib import redirect_stdout
from typing import Annotated, Any

from cyclopts import Parameter

from ...app.app import App
from ...commit.preview import Preview
from ...core.near_match import is_probably
from ..errors import warn
from ..options import COMMON_DEFAULTS, CommonOptions
from ..output import SecretFilter
from ..parse import read_input
from ..preview import DryRun, IfVersion, print_dry_run
from ..session import build_admin_app, build_worker_app, refuse_memory_store
from ..tables import print_result

MAX_WAITS = 1000  # pending waits whose kinds are compared


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
    tag: Annotated[
        list[str] | None, Parameter(help="Tag of the event, to filter events by. May be repeated.", negative="")
    ] = None,
    dry_run: DryRun = False,
    if_version: IfVersion = None,
    common: CommonOptions = COMMON_DEFAULTS,
) -> int:
    """Emit an event, globally or to one run.

    Parameters
    ----------
    kind
        The event's kind, such as payment.confirmed.
    """
    value = read_input(data, "--data")
    if dry_run:

        async def preview(app: App) -> Preview:
            made = await app.events.emit(kind, value, run=run, key=key, tags=tag, dry_run=True, version=if_version)
            assert isinstance(made, Preview)
            return made

        return print_dry_run(common, preview)
    with redirect_stdout(sys.stderr):  # a worker file may print while it is imported
        emitted = asyncio.run(_emit(common, kind, value, run, key, tag, if_version))
    where = f"to run {run}" if run is not None else "(global)"
    text = f"Emitted {kind} {where}." if emitted else f"Nothing was emitted: key {key!r} was used before."
    shown = SecretFilter(common, reveal=False).redact_value("data", value)
    print_result(text, {"kind": kind, "run": run, "data": shown, "emitted": emitted}, json=common.json)
    return 0


async def _emit(
    common: CommonOptions,
    kind: str,
    data: Any,
    run: str | None,
    key: str | None,
    tags: list[str] | None,
    version: int | None,
) -> bool:
    refuse_memory_store(common)
    async with build_worker_app(common, may_be_remote=True) if run is None else build_admin_app(common) as app:
        if run is not None:
            # Which steps the event starts is known only with the flow's code.
            app.registry.flow((await app.runs.get(run)).name)
        is_new = await app.events.emit(kind, data, run=run, key=key, tags=tags, version=version) is not False
        await _hint_waits(app, kind)
        return is_new


async def _hint_waits(app: App, kind: str) -> None:
    """Warn about a kind that nothing listens to, if runs wait for one of almost the same name."""
    if kind in app.registry.heard_kinds:
        return
    kinds = {wait.event for wait in await app.waits.list(kind="event", limit=MAX_WAITS) if wait.event is not None}
    if kind not in kinds and (near := is_probably(kind, kinds - app.registry.heard_kinds)) is not None:
        warn(f"warning: no run waits for {kind!r}; did you mean {near!r}?")
