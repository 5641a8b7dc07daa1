"""`client.waits`."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal, overload

import msgspec

from ..app.waits import WaitView
from ..commit.preview import Preview
from ..core.argument_checks import check_arguments
from ..core.durations import Duration
from ..core.errors import BadArgument
from ..core.payload import to_plain
from ..core.signatures import Signature
from ..core.text import shorten
from .connection import Connection, Page
from .times import show_time

WAIT = "/api/_waits/{}"


class _Action(msgspec.Struct):
    run: str = ""
    preview: Preview | None = None


@check_arguments
class Waits:
    """Pending waits and triggers."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def list(
        self,
        *,
        run: str | None = None,
        kind: str | None = None,
        state: str = "pending",
        since: datetime | Duration | None = None,
        until: datetime | Duration | None = None,
        before: str | None = None,
        limit: int = 50,
    ) -> list[WaitView]:
        """Return a page of waits in one state, newest first.

        Args:
            run: Only waits of this run.
            kind: Only waits of this kind: time, event or trigger.
            state: pending, resolved, expired or cancelled; `fired` lists the triggers that were fired.
            since: Only waits registered since a datetime, or within a duration such as "1h".
            until: Only waits registered before a datetime, or longer ago than a duration.
            before: Id of the last wait of the page before.
            limit: Maximum number of waits.
        """
        page = await self._connection.get(
            Page[WaitView],
            "/api/_waits",
            run=run,
            kind=kind,
            state=state,
            since=show_time(since),
            until=show_time(until),
            before=before,
            limit=limit,
        )
        return page.items

    async def fire(self, token: str, data: Any = None, *, signature: Signature | None = None) -> str:
        """Fire a trigger and return the id of the run that it resumes. A token works once.

        Args:
            token: The trigger's token, or its URL.
            data: What the waiting step receives: any JSON value. Leave it out of a signed call.
            signature: The signature of the call, for triggers that require one. The step receives its body.
        """
        if signature is not None and not isinstance(signature, Signature):
            raise BadArgument(f"signature must be a Signature, got {shorten(signature)}")
        if signature is not None and data is not None:
            raise BadArgument("a signed call has its data in the signature; leave out data=")
        content = msgspec.json.encode(to_plain(data, "data")) if data is not None else b""
        headers = signature.headers if signature is not None else {}
        content = signature.body if signature is not None else content
        path, name = "/api/triggers/{}", str(token).rpartition("/")[2]
        answer = await self._connection.send("POST", dict[str, str], path, name, content=content, headers=headers)
        return answer["run"]

    async def sign(self, token: str, data: Any = None) -> Signature:
        """Sign a call of a trigger, with the secret in the environment variable of the server that it names.

        Args:
            token: The trigger's token, or its URL.
            data: What the waiting step will receive: any JSON value.
        """
        return await self._connection.post(Signature, "/api/_waits/sign", token=token, data=data)

    async def token(self, id: str) -> str:
        """Return a new token for a pending trigger.

        Args:
            id: Id of the trigger; `client.waits.list(kind="trigger")` lists them.
        """
        return (await self._connection.post(dict[str, str], "/api/_waits/{}/token", id))["token"]

    async def get(self, id: str) -> WaitView:
        """Return a wait.

        Args:
            id: Id of the wait.
        """
        return await self._connection.get(WaitView, WAIT, id)

    @overload
    async def resolve(
        self,
        id: str,
        data: Any = None,
        *,
        reason: str | None = None,
        by: str | None = None,
        dry_run: Literal[False] = False,
        version: int | Preview | None = None,
    ) -> str: ...

    @overload
    async def resolve(
        self,
        id: str,
        data: Any = None,
        *,
        reason: str | None = None,
        by: str | None = None,
        dry_run: Literal[True],
        version: int | Preview | None = None,
    ) -> Preview: ...

    @overload
    async def resolve(
        self,
        id: str,
        data: Any = None,
        *,
        reason: str | None = None,
        by: str | None = None,
        dry_run: bool,
        version: int | Preview | None = None,
    ) -> str | Preview: ...

    async def resolve(
        self,
        id: str,
        data: Any = None,
        *,
        reason: str | None = None,
        by: str | None = None,
        dry_run: bool = False,
        version: int | Preview | None = None,
    ) -> str | Preview:
        """Resolve a pending wait by hand: end a sleep, give an event, fire a trigger. Return the id of its run.

        Args:
            id: Id of the wait; `client.waits.list()` lists them.
            data: What the waiting step receives.
            reason: Recorded with the event.
            by: Who did it, recorded with the event beside the name of the token.
            dry_run: Write nothing, and return a Preview of what would be written.
            version: The run's version, or a Preview: raise RunMoved if the run has moved on since.
        """
        done = await self._connection.act(
            _Action,
            WAIT + "/resolve",
            id,
            dry_run=dry_run,
            version=version,
            body={"data": data, "reason": reason, "by": by},
        )
        return done.run if done.preview is None else done.preview

    @overload
    async def cancel(
        self,
        id: str,
        *,
        reason: str | None = None,
        by: str | None = None,
        dry_run: Literal[False] = False,
        version: int | Preview | None = None,
    ) -> str: ...

    @overload
    async def cancel(
        self,
        id: str,
        *,
        reason: str | None = None,
        by: str | None = None,
        dry_run: Literal[True],
        version: int | Preview | None = None,
    ) -> Preview: ...

    @overload
    async def cancel(
        self,
        id: str,
        *,
        reason: str | None = None,
        by: str | None = None,
        dry_run: bool,
        version: int | Preview | None = None,
    ) -> str | Preview: ...

    async def cancel(
        self,
        id: str,
        *,
        reason: str | None = None,
        by: str | None = None,
        dry_run: bool = False,
        version: int | Preview | None = None,
    ) -> str | Preview:
        """Cancel a pending wait. It raises WaitCancelled in the run. Return the id of its run.

        Args:
            id: Id of the wait; `client.waits.list()` lists them.
            reason: Recorded with the event.
            by: Who did it, recorded with the event beside the name of the token.
            dry_run: Write nothing, and return a Preview of what would be written.
            version: The run's version, or a Preview: raise RunMoved if the run has moved on since.
        """
        done = await self._connection.act(
            _Action, WAIT + "/cancel", id, dry_run=dry_run, version=version, body={"reason": reason, "by": by}
        )
        return done.run if done.preview is None else done.preview
