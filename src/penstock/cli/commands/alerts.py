"""`penstock alerts list|check|rules|history|silence|silences|unsilence|test`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, TypeVar

import msgspec
from cyclopts import App as Commands
from cyclopts import Parameter

from ...app import App
from ..errors import EXIT_FAILED
from ..options import COMMON_DEFAULTS, CommonOptions
from ..session import build_admin_app
from ..tables import print_result, print_rows

T = TypeVar("T")
alerts = Commands(name="alerts", help="List alerts that fire; check, rules, history, silence, test.")
_COLUMNS = ("subject", "summary", "rule", "since", "silenced")
_NO_RULES = "No rules; set PENSTOCK_ALERTS, for example to 'oldest_age > 5m,no_worker'."


def _call(common: CommonOptions, read: Callable[[App], Awaitable[T]]) -> T:
    async def call() -> T:
        async with build_admin_app(common) as app:
            return await read(app)

    return asyncio.run(call())


def _print(found: Any, columns: tuple[str, ...], common: CommonOptions, empty: str) -> None:
    rows: list[dict[str, Any]] = msgspec.to_builtins(list(found))
    print_rows(rows, columns, json=common.json, empty=empty)


@alerts.command(name="list")
@alerts.default
def list_alerts(*, common: CommonOptions = COMMON_DEFAULTS) -> int:
    """List the alerts that fire, as of the last evaluation."""
    _print(_call(common, lambda app: app.alerts.list()), _COLUMNS, common, "No alert fires.")
    return 0


@alerts.command(name="check")
def check_alerts(*, common: CommonOptions = COMMON_DEFAULTS) -> int:
    """Evaluate the rules now, record and send what has changed.

    Exits with 1 if an alert fires. Workers evaluate the rules once a minute.
    """
    found = _call(common, lambda app: app.alerts.check())
    _print(found, _COLUMNS, common, "No alert fires.")
    return EXIT_FAILED if found else 0


@alerts.command(name="rules")
def list_rules(*, common: CommonOptions = COMMON_DEFAULTS) -> int:
    """List the rules of the setting 'alerts'."""
    _print(_call(common, lambda app: app.alerts.rules()), ("rule", "kind", "on"), common, _NO_RULES)
    return 0


@alerts.command(name="history")
def list_changes(
    *,
    limit: Annotated[int, Parameter(help="Maximum number of rows.")] = 50,
    common: CommonOptions = COMMON_DEFAULTS,
) -> int:
    """List when alerts fired and were resolved, newest first."""
    found = _call(common, lambda app: app.alerts.history(limit=limit))
    _print(found, ("at", "change", "subject", "summary", "rule", "silenced"), common, "No alert has fired.")
    return 0


@alerts.command(name="silence")
def silence_alerts(
    rule: Annotated[str | None, Parameter(help="A rule or its kind, such as oldest_age. Default: all.")] = None,
    /,
    *,
    subject: Annotated[str | None, Parameter(name="--on", help="Only this queue or schedule.")] = None,
    duration: Annotated[str, Parameter(name="--for", help="For how long, such as 2h.")] = "1h",
    reason: Annotated[str, Parameter(help="Why; shown with the silence.")] = "",
    common: CommonOptions = COMMON_DEFAULTS,
) -> int:
    """Silence alerts for a while: they are recorded and not sent."""
    made = _call(common, lambda app: app.alerts.silence(rule, subject=subject, duration=duration, reason=reason))
    text = f"Silenced {rule or 'all rules'}{f' on {subject}' if subject else ''} until {made.until} ({made.id})."
    print_result(text, msgspec.to_builtins(made), json=common.json)
    return 0


@alerts.command(name="silences")
def list_silences(*, common: CommonOptions = COMMON_DEFAULTS) -> int:
    """List the silences that hold now."""
    columns = ("id", "rule", "subject", "until", "reason")
    _print(_call(common, lambda app: app.alerts.silences()), columns, common, "Nothing is silenced.")
    return 0


@alerts.command(name="unsilence")
def end_silence(
    id: Annotated[str, Parameter(help="Id of the silence.")], /, *, common: CommonOptions = COMMON_DEFAULTS
) -> int:
    """End a silence."""
    _call(common, lambda app: app.alerts.unsilence(id))
    print_result(f"Ended silence {id}.", {"id": id, "ended": True}, json=common.json)
    return 0


@alerts.command(name="test")
def send_test(*, common: CommonOptions = COMMON_DEFAULTS) -> int:
    """Send a test notification to the webhook. A worker sends it."""
    _call(common, lambda app: app.alerts.test())
    print_result("Enqueued a test notification; a worker sends it.", {"enqueued": True}, json=common.json)
    return 0
