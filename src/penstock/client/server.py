"""`client.flows`, `client.workers` and `client.tokens`: the code, the workers and the callers of the server."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from ..app.tokens import VIEWER, Role, Token
from ..app.views import WorkerView
from ..core.argument_checks import check_arguments
from ..core.durations import Duration
from .connection import Connection
from .times import show_duration

FLOW = "/api/_flow/{}"


@check_arguments
class Flows:
    """The flows in the code that the server has loaded."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def list(self) -> list[dict[str, Any]]:
        """Return all flows: name, version, first step, the kinds they accept, and their steps."""
        return await self._connection.get(list[dict[str, Any]], "/api/_flow")

    async def get(self, flow: str) -> dict[str, Any]:
        """Return one flow.

        Args:
            flow: The flow's name.
        """
        return await self._connection.get(dict[str, Any], FLOW, flow)

    async def diagram(self, flow: str) -> dict[str, Any]:
        """Return a flow as a graph, `{"nodes": […], "edges": […]}`.

        Args:
            flow: The flow's name.
        """
        return await self._connection.get(dict[str, Any], FLOW + "/diagram", flow)


@check_arguments
class Workers:
    """The workers of all processes."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def list(self) -> Sequence[WorkerView]:
        """Return the workers that are alive."""
        return await self._connection.get(Views, "/api/_workers")


Views = list[WorkerView]


class _NewToken(msgspec.Struct):
    token: Token
    text: str


@check_arguments
class Tokens:
    """Tokens of the HTTP API. All methods require the role admin."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def add(self, name: str, role: Role = VIEWER, *, expires: Duration | None = None) -> tuple[Token, str]:
        """Create a token, and return it with its text, which is shown once.

        Args:
            name: Who uses it.
            role: viewer, operator or admin.
            expires: How long it is valid, such as "30d". Default: for ever.
        """
        made = await self._connection.post(
            _NewToken, "/api/_tokens", name=name, role=role, expires=show_duration(expires)
        )
        return made.token, made.text

    async def list(self) -> list[Token]:
        """Return all tokens, without their text."""
        return await self._connection.get(list[Token], "/api/_tokens")

    async def revoke(self, id: str) -> Token:
        """Revoke a token.

        Args:
            id: Id of the token.
        """
        return await self._connection.delete(Token, "/api/_tokens/{}", id)
