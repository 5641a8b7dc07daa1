"""`/api/_alerts`: what fires, rules, history and silences."""

from __future__ import annotations

from ...app.alert_rules import AlertRule
from ...app.alerts import AlertChange, AlertView, Silence
from ...app.app import App
from ..endpoints import Body, Limit, Query, Routes
from .jobs import Done

routes = Routes("alerts")


class AlertHistoryQuery(Query):
    """Which changes to list."""

    before: str | None = None
    limit: Limit = 50


class SilenceBody(Body):
    """What to silence, and for how long."""

    rule: str | None = None
    subject: str | None = None
    duration: float | str = "1h"
    reason: str = ""


@routes.get("/api/_alerts")
async def list_alerts(app: App) -> list[AlertView]:
    """List the alerts that fire."""
    return list(await app.alerts.list())


@routes.post("/api/_alerts/check")
async def check_alerts(app: App) -> list[AlertView]:
    """Evaluate the rules now, and return the alerts that fire."""
    return list(await app.alerts.check())


@routes.post("/api/_alerts/test")
async def test_alerts(app: App) -> Done:
    """Send a test notification to the webhook of the alerts."""
    await app.alerts.test()
    return Done(True)


@routes.get("/api/_alerts/rules")
async def list_alert_rules(app: App) -> list[AlertRule]:
    """List the alert rules of the server."""
    return list(await app.alerts.rules())


@routes.get("/api/_alerts/history")
async def list_alert_changes(app: App, query: AlertHistoryQuery) -> list[AlertChange]:
    """List when alerts fired and were resolved, newest first."""
    return list(await app.alerts.history(before=query.before, limit=query.limit))


@routes.get("/api/_alerts/silences")
async def list_silences(app: App) -> list[Silence]:
    """List the silences that hold."""
    return list(await app.alerts.silences())


@routes.post("/api/_alerts/silences", status=201)
async def silence_alerts(app: App, body: SilenceBody) -> Silence:
    """Silence alerts for a while."""
    return await app.alerts.silence(body.rule, subject=body.subject, duration=body.duration, reason=body.reason)


@routes.delete("/api/_alerts/silences/{id}")
async def remove_silence(app: App, id: str) -> Done:
    """End a silence."""
    await app.alerts.unsilence(id)
    return Done(True)
