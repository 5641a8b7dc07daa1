"""`client.state`."""

from __future__ import annotations

from typing import Any

import msgspec

from ..context.state import StatePage
from ..core.api_errors import UnknownKey
from ..core.argument_checks import check_arguments
from ..core.durations import Duration
from ..core.payload import to_plain
from .connection import Connection
from .times import show_duration

KEY = "/api/_state/{}"


class _Keys(msgspec.Struct):
    items: dict[str, Any]
    next: str | None = None
    unreadable: dict[str, str] = {}


@check_arguments
class State:
    """Keys that all flows share, or those of one run."""

    def __init__(self, connection: Connection, run: str | None = None) -> None:
        self._connection = connection
        self._run = run

    def of_run(self, run: str) -> State:
        """Return the keys that the steps of a run share, as `ctx.state` has them.

        Args:
            run: The run's id.
        """
        return State(self._connection, run)

    async def get(self, key: str, default: Any = None) -> Any:
        """Return the value of a key. Secrets are redacted, as in every answer of the API.

        Args:
            key: Name of the key.
            default: What to return if the key does not exist.
        """
        try:
            return (await self._connection.get(dict[str, Any], KEY, key, run=self._run))["value"]
        except UnknownKey:
            return default

    async def set(self, key: str, value: Any, *, ttl: Duration | None = None) -> None:
        """Set a key.

        Args:
            key: Name of the key.
            value: Any JSON value.
            ttl: Delete the key after this duration, such as "1d". Default: never.
        """
        body = {"value": to_plain(value, "value"), "ttl": show_duration(ttl)}  # None is a value too
        content = msgspec.json.encode(body)
        await self._connection.send("PUT", dict[str, Any], KEY, key, query={"run": self._run}, content=content)

    async def delete(self, key: str) -> None:
        """Delete a key.

        Args:
            key: Name of the key.
        """
        await self._connection.delete(dict[str, bool], KEY, key, run=self._run)

    async def list(self, prefix: str = "", *, after: str | None = None, limit: int = 100) -> StatePage:
        """Return keys and values in key order.

        Args:
            prefix: Only keys that start with this.
            after: The last key of the page before.
            limit: Maximum number of keys.
        """
        page = await self._connection.get(_Keys, "/api/_state", prefix=prefix, after=after, limit=limit, run=self._run)
        found = StatePage(page.items)
        found.next, found.unreadable = page.next, page.unreadable
        return found
