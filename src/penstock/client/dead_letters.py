"""`client.dead_letters`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, overload

import msgspec

from ..app.arguments import UNSET
from ..app.dead_letters import ErrorGroup
from ..app.redrive import RedriveResult
from ..commit.preview import Preview
from ..core.argument_checks import check_arguments
from ..core.errors import UnknownJob
from ..jobs.dead_letters import DeadLetter
from .connection import Connection, Page, show_input
from .runs import Redriven

LETTER = "/api/_dlq/letters/{}"
GROUP = "/api/_dlq/groups/{}"
Groups = list[ErrorGroup]


class _Bulk(msgspec.Struct):
    matched: int
    sent: dict[str, str] = {}
    refused: dict[str, str] = {}
    removed: int = 0
    preview: Preview | None = None

    @property
    def result(self) -> RedriveResult | Preview:
        return RedriveResult(self.sent, self.refused) if self.preview is None else self.preview


class _Letter(msgspec.Struct):
    id: str
    letter: DeadLetter


@check_arguments
class DeadLetters:
    """Jobs and steps that finally failed, kept until redriven or discarded."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def queues(self) -> dict[str, int]:
        """Return the dead-letter queues that are not empty, with their counts."""
        return await self._connection.get(dict[str, int], "/api/_dlq")

    async def list(
        self, queue: str, *, group: str | None = None, after: str | None = None, limit: int = 50
    ) -> list[tuple[str, DeadLetter]]:
        """Return a page of dead letters with their ids, oldest first.

        Args:
            queue: The queue whose jobs failed, with or without `-dlq`.
            group: Only those of this error group; see `groups`.
            after: Id of the last dead letter of the page before.
            limit: Maximum number of dead letters.
        """
        page = await self._connection.get(
            Page[_Letter], "/api/_dlq/{}/letters", queue, group=group, after=after, limit=limit
        )
        return [(item.id, item.letter) for item in page.items]

    async def groups(self, queue: str | None = None, *, limit: int = 50) -> Sequence[ErrorGroup]:
        """Return the error groups of dead letters, the largest first: those that failed in the same way.

        Args:
            queue: The queue whose jobs failed, with or without `-dlq`. Default: all queues.
            limit: Maximum number of groups.
        """
        return await self._connection.get(Groups, "/api/_dlq/groups", queue=queue, limit=limit)

    async def group(self, id: str) -> ErrorGroup:
        """Return an error group. If several queues have letters of it, return the largest one.

        Args:
            id: Id of the group; see `groups`.
        """
        return await self._connection.get(ErrorGroup, GROUP, id)

    async def count(self, queue: str | None = None, *, group: str | None = None) -> int:
        """Return the number of dead letters, of a queue and an error group.

        Args:
            queue: The queue whose jobs failed, with or without `-dlq`. Default: all queues.
            group: Only those of this error group; see `groups`.
        """
        answer = await self._connection.get(dict[str, int], "/api/_dlq/count", queue=queue, group=group)
        return answer["count"]

    async def get(self, id: str) -> DeadLetter:
        """Return a dead letter, by its id or by the id of the job that failed.

        Args:
            id: Id of the dead letter, or of the job that failed.
        """
        return await self._connection.get(DeadLetter, LETTER, id)

    @overload
    async def redrive(
        self, id: str, *, input: Any = UNSET, dry_run: Literal[False] = False, version: int | Preview | None = None
    ) -> RedriveResult: ...

    @overload
    async def redrive(
        self, id: str, *, input: Any = UNSET, dry_run: Literal[True], version: int | Preview | None = None
    ) -> Preview: ...

    @overload
    async def redrive(
        self, id: str, *, input: Any = UNSET, dry_run: bool, version: int | Preview | None = None
    ) -> RedriveResult | Preview: ...

    async def redrive(
        self, id: str, *, input: Any = UNSET, dry_run: bool = False, version: int | Preview | None = None
    ) -> RedriveResult | Preview:
        """Put one dead letter back to work.

        Args:
            id: Id of the dead letter, or of the job that failed.
            input: Another input instead of the recorded one.
            dry_run: Write nothing, and return a Preview of what would be written.
            version: The run's version, or a Preview: raise RunMoved if the run has moved on since.
        """
        body = show_input(input)
        done = await self._connection.act(
            Redriven, LETTER + "/redrive", id, dry_run=dry_run, version=version, body=body
        )
        return done.result

    @overload
    async def redrive_all(
        self, queue: str, *, limit: int | None = None, dry_run: Literal[False] = False, version: Preview | None = None
    ) -> RedriveResult: ...

    @overload
    async def redrive_all(
        self, queue: str, *, limit: int | None = None, dry_run: Literal[True], version: Preview | None = None
    ) -> Preview: ...

    @overload
    async def redrive_all(
        self, queue: str, *, limit: int | None = None, dry_run: bool, version: Preview | None = None
    ) -> RedriveResult | Preview: ...

    async def redrive_all(
        self, queue: str, *, limit: int | None = None, dry_run: bool = False, version: Preview | None = None
    ) -> RedriveResult | Preview:
        """Redrive the dead letters of a queue.

        Args:
            queue: The queue whose jobs failed.
            limit: Maximum number of dead letters. Default: all.
            dry_run: Write nothing, and return a Preview of what would be written.
            version: A Preview: refuse the dead letters whose run has moved on since, and those that are new.
        """
        body = {"limit": limit, "confirm": True, "preview": version}
        done = await self._connection.act(_Bulk, "/api/_dlq/{}/redrive", queue, dry_run=dry_run, body=body)
        return done.result

    async def discard(self, id: str) -> bool:
        """Delete a dead letter for good.

        Args:
            id: Id of the dead letter, or of the job that failed.
        """
        return (await self._connection.delete(dict[str, bool], LETTER, id))["ok"]

    @overload
    async def redrive_group(
        self, group: str, *, input: Any = UNSET, dry_run: Literal[False] = False, version: Preview | None = None
    ) -> RedriveResult: ...

    @overload
    async def redrive_group(
        self, group: str, *, input: Any = UNSET, dry_run: Literal[True], version: Preview | None = None
    ) -> Preview: ...

    @overload
    async def redrive_group(
        self, group: str, *, input: Any = UNSET, dry_run: bool, version: Preview | None = None
    ) -> RedriveResult | Preview: ...

    async def redrive_group(
        self, group: str, *, input: Any = UNSET, dry_run: bool = False, version: Preview | None = None
    ) -> RedriveResult | Preview:
        """Put the dead letters of an error group back to work, those of all queues.

        Args:
            group: Id of the group; see `groups`.
            input: Another input instead of the recorded ones.
            dry_run: Write nothing, and return a Preview of what would be written.
            version: A Preview: refuse the dead letters whose run has moved on since, and those that are new.
        """
        body = {"confirm": True, "preview": version, **show_input(input)}
        done = await self._connection.act(_Bulk, GROUP + "/redrive", group, dry_run=dry_run, body=body)
        _check_group(done, group)
        return done.result

    async def discard_group(self, group: str) -> int:
        """Delete the dead letters of an error group for good, and return how many.

        Args:
            group: Id of the group; see `groups`.
        """
        done = await self._connection.post(_Bulk, GROUP + "/discard", group, confirm=True)
        _check_group(done, group)
        return done.removed


def _check_group(done: _Bulk, group: str) -> None:
    if not done.matched:
        raise UnknownJob(f"no dead letters of error group {group!r}")
