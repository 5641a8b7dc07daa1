"""`client.alerts`."""

from __future__ import annotations

from collections.abc import Sequence

from ..app.alert_rules import AlertRule
from ..app.alerts import AlertChange, AlertView, Silence
from ..core.argument_checks import check_arguments
from ..core.durations import Duration
from .connection import Connection
from .times import show_duration

ALERTS = "/api/_alerts"


@check_arguments
class Alerts:
    """Alerts by the rules of the server."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def rules(self) -> Sequence[AlertRule]:
        """Return the rules of the setting `alerts`."""
        return await self._connection.get(list[AlertRule], f"{ALERTS}/rules")

    async def list(self) -> Sequence[AlertView]:
        """Return the alerts that fire, oldest first, as of the last evaluation."""
        return await self._connection.get(list[AlertView], ALERTS)

    async def check(self) -> Sequence[AlertView]:
        """Evaluate the rules now, record and send what has changed, and return the alerts that fire."""
        return await self._connection.request("POST", list[AlertView], f"{ALERTS}/check")

    async def history(self, *, before: str | None = None, limit: int = 50) -> Sequence[AlertChange]:
        """Return when alerts fired and were resolved, newest first.

        Args:
            before: Id of the last change of the page before.
            limit: Maximum number of changes.
        """
        return await self._connection.get(list[AlertChange], f"{ALERTS}/history", before=before, limit=limit)

    async def silence(
        self, rule: str | None = None, *, subject: str | None = None, duration: Duration = "1h", reason: str = ""
    ) -> Silence:
        """Silence alerts for a while: they are recorded and not sent. Those that still fire afterwards are sent then.

        Args:
            rule: A rule, or its kind such as "oldest_age". Default: all rules.
            subject: A queue or a schedule. Default: all of them.
            duration: For how long.
            reason: Why; shown with the silence.
        """
        body = {"rule": rule, "subject": subject, "duration": show_duration(duration), "reason": reason}
        return await self._connection.request("POST", Silence, f"{ALERTS}/silences", body=body)

    async def silences(self) -> Sequence[Silence]:
        """Return the silences that hold now."""
        return await self._connection.get(list[Silence], f"{ALERTS}/silences")

    async def unsilence(self, id: str) -> None:
        """End a silence. Raise UnknownSilence if there is none.

        Args:
            id: Id of the silence.
        """
        await self._connection.delete(dict[str, bool], f"{ALERTS}/silences/{{}}", id)

    async def test(self) -> None:
        """Send a notification to the webhook, to see that it arrives. A worker sends it."""
        await self._connection.request("POST", dict[str, bool], f"{ALERTS}/test")
