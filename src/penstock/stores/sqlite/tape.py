"""The tape: writes in the order they are to happen, made all at once by one statement.

The writer's thread and the event loop share one interpreter. A statement lets go of it, and while the loop is busy gets
it back only when the loop lets go, which can be milliseconds: what counts is how many statements there are.
"""

from __future__ import annotations

import re
from typing import Any

import apsw

from ...ports.unit import NewJob
from ..queries import Queries
from .rows import write_rows
from .statements import DELAYED, SQL, VERBS, WAITING

TAPE = Queries(__package__, "tape.sql")
COLUMNS = 9
JOB_COLUMNS = 14
FEW = 8  # up to so many writes, statements of their own are cheaper, and there is hardly a loop to wait for
_PADDING = [(None,) * (COLUMNS - width) for width in range(COLUMNS + 1)]


def set_up_tape(connection: apsw.Connection) -> None:
    """Gives the connection the view that is written to and the triggers that do what its rows say."""
    connection.execute(TAPE.view)
    for verb, statement in vars(VERBS).items():
        connection.execute(TAPE.trigger.format(verb=verb, statement=re.sub(r"\?(\d)", r"NEW.v\1", statement)))


class Tape:
    """Collects writes of the transaction the cursor is in. Nothing is written, nor seen by a query, until `play`."""

    def __init__(self, cursor: apsw.Cursor) -> None:
        self._cursor = cursor
        self._rows: list[tuple[Any, ...]] = []
        self._jobs: list[Any] = []
        self.add = self._rows.append  # a verb of verbs.sql and its values

    def add_job(self, job: NewJob, now: int) -> None:
        """A job whose id is new."""
        started = job.started
        self._jobs += (
            job.id, job.queue, job.name, DELAYED if job.due > now else WAITING, job.priority, job.due, job.run,
            job.scope, job.rate_key, now, started.stream if started else None, started.head if started else None,
            job.opts, job.payload,
        )  # fmt: skip

    def play(self) -> None:
        if self._rows:
            if len(self._rows) > FEW:
                self._play_many()
            else:
                for verb, *values in self._rows:
                    self._cursor.execute(vars(VERBS)[verb], values)
            self._rows.clear()
        if self._jobs:
            write_rows(self._cursor, SQL.add_jobs, JOB_COLUMNS, self._jobs)
            self._jobs.clear()

    def _play_many(self) -> None:
        values: list[Any] = []
        for row in self._rows:
            values += row
            values += _PADDING[len(row)]
        write_rows(self._cursor, TAPE.write, COLUMNS, values)
