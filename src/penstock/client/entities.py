"""`client.entities`."""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Literal

import msgspec

from ..app.entities import Emission, EmittedEvent, EntitySummary, EntityType, check_emission, check_states
from ..core.durations import Duration
from ..entities.reducer import EntityView, TransitionView
from ..entities.urns import to_id
from .connection import Connection
from .times import show_duration, show_moment, show_timeout

ENTITY, TYPE = "/api/_entities/{}", "/api/_entity-types/{}"


class _Emission(msgspec.Struct, rename="camel"):
    urn: str
    id: str
    event: str
    n: int | None = None
    is_new: bool = True
    job: str | None = None
    key: str | None = None
    cursor: str | None = None
    refused: str | None = None


class _Diagram(msgspec.Struct):
    diagram: str | dict[str, Any]


class _Done(msgspec.Struct):
    ok: bool


def _place(urn: str) -> str:
    """Return what names an entity in a path: its urn, or its id if the urn has a slash."""
    return to_id(urn) if isinstance(urn, str) and "/" in urn else urn


class Entities:
    """Entities in the store of the server."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def emit(
        self,
        urn: str,
        event: str,
        payload: Any = None,
        *,
        type: str | None = None,
        key: str | None = None,
        delay: Duration | None = None,
        at: datetime | None = None,
    ) -> Emission:
        """Emit an event to an entity. Pass what it returns to `result`.

        Args:
            urn: The entity's urn: any text, such as "urn:order:7".
            event: The event, such as "paid".
            payload: Any JSON value.
            type: The type of a new entity. Default: the one whose urns start like this one.
            key: Idempotency key: the same key of an entity has an effect once.
            delay: How long to wait before the event arrives, such as "10m".
            at: When the event arrives, a datetime with a time zone. Instead of `delay`.
        """
        body = {"urn": urn, "event": event, "payload": payload, "type": type, "key": key, "delay": show_duration(delay)}
        body["at"] = show_moment(at)
        one = await self._connection.post(_Emission, ENTITY + "/emit", _place(urn), **body)
        return Emission(one.urn, one.id, one.event, one.n, one.is_new, one.job, one.key, one.cursor, one.refused, self)

    async def result(self, emission: EmittedEvent, *, timeout: Duration | None = None) -> TransitionView:
        """Wait until an event has been handled, and return what it did.

        Raise EntityRefused if the entity refused it, and EntityFailed if it failed for good.

        Args:
            emission: What `emit` returned.
            timeout: Raise WaitTimeout after this long.
        """
        check_emission(emission)
        names = ("event", "n", "key", "job", "cursor", "refused")
        query = {name: getattr(emission, name) for name in names} | {"timeout": show_timeout(timeout)}
        query["urn"] = emission.urn
        path = ENTITY + "/result"
        return await self._connection.request(
            "GET", TransitionView, path, _place(emission.urn), query=query, read_timeout_s=None
        )

    async def create(self, urn: str, data: Any = None, *, type: str | None = None) -> bool:
        """Create an entity in its initial state. Return False if it exists.

        Args:
            urn: The entity's urn.
            data: Its data: any JSON value.
            type: Its type. Default: the one whose urns start like this one.
        """
        body = {"urn": urn, "data": data, "type": type}
        return (await self._connection.request("PUT", _Done, ENTITY, _place(urn), body=body)).ok

    async def get(self, urn: str, *, at: str | datetime | None = None) -> EntityView:
        """Return an entity: its status, its data, the events that wait and its history.

        Args:
            urn: The entity's urn, or its id.
            at: An event's id or a datetime: return the entity as it was then.
        """
        moment = at if isinstance(at, str) else show_moment(at)
        return await self._connection.get(EntityView, ENTITY, _place(urn), at=moment)

    async def history(self, urn: str, *, limit: int = 100) -> Sequence[TransitionView]:
        """Return what events did to an entity, newest first.

        Args:
            urn: The entity's urn, or its id.
            limit: Maximum number of entries, up to 1,000. The stream has all of them.
        """
        return await self._connection.get(builtins.list[TransitionView], ENTITY + "/history", _place(urn), limit=limit)

    async def list(
        self,
        *,
        type: str | None = None,
        status: str | None = None,
        before: str | None = None,
        limit: int = 50,
    ) -> Sequence[EntitySummary]:
        """Return a page of entities, newest first.

        Args:
            type: Only entities of this type. Default: of all types that the server has loaded.
            status: Only entities in this state.
            before: Id of the last entity of the page before.
            limit: Maximum number of entities.
        """
        query = {"type": type, "status": status, "before": before, "limit": limit}
        return await self._connection.get(builtins.list[EntitySummary], "/api/_entities", **query)

    async def counts(self, type: str) -> dict[str, int]:
        """Return how many entities of a type are in each state.

        Args:
            type: The type.
        """
        return await self._connection.get(dict[str, int], TYPE + "/counts", type)

    async def wait_for(
        self, urn: str, status: str | Sequence[str], *, timeout: Duration | None = None
    ) -> EntitySummary:
        """Wait until an entity is in a state, or in one of several. It may not exist yet.

        Args:
            urn: The entity's urn.
            status: The state, or several of them.
            timeout: Raise WaitTimeout after this long.
        """
        wanted = ",".join(check_states(status))
        query = {"urn": urn, "status": wanted, "timeout": show_timeout(timeout)}
        return await self._connection.request(
            "GET", EntitySummary, ENTITY + "/wait", _place(urn), query=query, read_timeout_s=None
        )

    async def types(self) -> Sequence[EntityType]:
        """Return the definitions of entities that the server has loaded, by name."""
        return await self._connection.get(builtins.list[EntityType], "/api/_entity-types")

    async def diagram(
        self, type: str, *, urn: str | None = None, format: Literal["mermaid", "svg", "json"] = "mermaid"
    ) -> str | dict[str, Any]:
        """Return the state machine of a type as Mermaid, SVG or a graph, with the state of an entity marked.

        Args:
            type: The type.
            urn: Mark the state that this entity is in.
            format: "mermaid", "svg", or "json" for `{"nodes": […], "edges": […]}`.
        """
        return (await self._connection.get(_Diagram, TYPE + "/diagram", type, urn=urn, format=format)).diagram

    async def pause(self, urn: str, *, reason: str = "") -> bool:
        """Pause an entity: its events wait. Return False if it is paused or closed.

        Args:
            urn: The entity's urn, or its id.
            reason: Why, for people.
        """
        return (await self._connection.post(_Done, ENTITY + "/pause", _place(urn), reason=reason)).ok

    async def resume(self, urn: str, *, reason: str = "") -> bool:
        """Resume a paused entity. Return False if it is not paused.

        Args:
            urn: The entity's urn, or its id.
            reason: Why, for people.
        """
        return (await self._connection.post(_Done, ENTITY + "/resume", _place(urn), reason=reason)).ok
