"""`penstock doctor` and `penstock doctor RUN`."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import replace
from typing import Annotated, Any

from cyclopts import Parameter

from ...app import App
from ...app.diagnosis import Check, check_versions, diagnose, failed_check
from ...app.store_urls import is_read_only, mask, readable_url, sqlite_path
from ...core.errors import PenstockError
from ...core.text import pluralize
from ...handlers.discovery import LoadProblem
from ...settings import Settings
from ...telemetry.logging import LOGGER
from ..options import COMMON_DEFAULTS, CommonOptions
from ..output import has_unicode_output, print_json, print_text
from ..session import build_admin_app, build_worker_app, is_server_url


class ChecksFailed(PenstockError):
    """`penstock doctor` found a problem."""

    code = "checks_failed"


_OUTBOX_HELP = "Check the outbox in this database too: sqlite:///file.db or postgresql://user@host/database."


def doctor(
    run: str | None = None,
    /,
    *,
    outbox: Annotated[str | None, Parameter(help=_OUTBOX_HELP)] = None,
    common: CommonOptions = COMMON_DEFAULTS,
) -> int:
    """Check settings, store, versions, clock, disk, worker files, queues and stuck runs.

    With a run's id, explain why that run is not moving.

    Parameters
    ----------
    run
        The run's id.
    """
    with redirect_stdout(sys.stderr):  # a worker file may print while it is imported
        reasons = asyncio.run(_why(common, run)) if run is not None else []
        checks = asyncio.run(_diagnose(common)) if run is None else []
        if outbox is not None:
            checks.append(asyncio.run(_check_outbox(common, outbox)))
    if run is not None:
        _show_reasons(run, reasons, common.json)
        return 0
    _show_checks(checks, common.json)
    if failed := sum(not check.ok for check in checks):
        raise ChecksFailed(f"{failed} of {len(checks)} checks failed")
    return 0


async def _why(common: CommonOptions, run: str) -> list[str]:
    async with build_admin_app(common) as app:
        return list(await app.runs.why(run))


async def _diagnose(common: CommonOptions) -> list[Check]:
    if is_server_url(common):
        async with build_admin_app(common) as app:
            return list(await app.diagnose())
    try:
        settings = Settings.load({"url": common.url, "dir": common.dir})
    except PenstockError as problem:
        return [check_versions(), failed_check("settings", problem)]
    url = readable_url(settings.url)
    try:
        with _without_problem_warnings():
            app = build_worker_app(common if url == settings.url else replace(common, url=url))
    except PenstockError as problem:
        failed = failed_check("worker files", problem)
        checks = [failed if one.name == failed.name else one for one in await diagnose(App(url, handlers=()))]
    else:
        checks = await diagnose(app)
    if is_read_only(url) and not is_read_only(settings.url):
        checks.insert(3, _check_permissions(sqlite_path(url)))
    return checks


async def _check_outbox(common: CommonOptions, url: str) -> Check:
    try:
        async with App(":memory:", handlers=(), namespace=Settings.load({"url": common.url}).namespace) as app:
            waiting, failed = await app.outbox.count_waiting(url), await app.outbox.failed(url, limit=1)
    except PenstockError as problem:
        return failed_check("outbox", problem)
    detail = f"{pluralize(waiting, 'row')} waiting in {mask(url)}"
    if not failed:
        return Check("outbox", True, detail)
    reason = f"rows that cannot be delivered were set aside, the first: {failed[0].error}"
    return Check("outbox", False, f"{detail}; {reason}; see `penstock outbox list --in {mask(url)}`")


def _check_permissions(path: str) -> Check:
    detail = (
        f"{path} is read-only here, so nothing can be started or worked on; allow writing to the file and its folder"
    )
    return Check("permissions", False, detail)


@contextmanager
def _without_problem_warnings() -> Iterator[None]:
    """Keep problems of worker files out of the log: a check reports them."""
    log = logging.getLogger(LOGGER)
    log.addFilter(_is_other_message)
    try:
        yield
    finally:
        log.removeFilter(_is_other_message)


def _is_other_message(record: logging.LogRecord) -> bool:
    return not (isinstance(record.args, tuple) and any(isinstance(value, LoadProblem) for value in record.args))


def _show_reasons(run: str, reasons: list[str], json: bool) -> None:
    if json:
        print_json({"run": run, "reasons": reasons})
    else:
        separator = " " if len(reasons) == 1 else "\n  "
        print_text(separator.join((f"Run {run}:", *(f"{reason}." for reason in reasons))))


def _check_to_dict(check: Check) -> dict[str, Any]:
    return {"name": check.name, "ok": check.ok, "warning": check.is_warning, "detail": check.detail}


def _show_checks(checks: list[Check], json: bool) -> None:
    if json:
        print_json({"ok": all(check.ok for check in checks), "checks": [_check_to_dict(check) for check in checks]})
        return
    good, bad = ("✓", "✗") if has_unicode_output() else ("+", "x")
    width = max(len(check.name) for check in checks)
    for check in checks:
        mark, colour = (bad, "31") if not check.ok else ("!", "33") if check.is_warning else (good, "32")
        detail = check.detail.replace("\n", "\n" + " " * (width + 4))
        print_text(f"{mark} {check.name:<{width}}  {detail}", colour=colour)
