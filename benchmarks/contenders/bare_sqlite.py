"""Baseline without an engine: the maximum rate of SQLite on this disk.

One apsw connection executes the statements that commit a step, seven per unit, with several units per transaction,
`synchronous=FULL` and WAL. There is no engine, no encoding and no second thread.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import apsw
from entry import Case, Metrics, latency, main

BATCHES = (1, 10, 50, 200)
FULL = 50  # the largest batch of a worker with concurrency 50
PAYLOAD = b'{"orderId":4711,"customer":"c-1042","items":[{"sku":"a-1","quantity":2}]}'
BODY = b'{"kind":"step.completed","subject":"run-0","flow":"three","step":"one","data":' + PAYLOAD + b"}"
RECORD = b'{"status":"running","steps":{"one":"completed","two":"active"},"payload":' + PAYLOAD + b"}"

SCHEMA = """
CREATE TABLE jobs (pk INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, queue TEXT NOT NULL,
                   state INTEGER NOT NULL, token TEXT, payload BLOB NOT NULL, result BLOB);
CREATE INDEX jobs_waiting ON jobs (queue, pk) WHERE state = 0;
CREATE TABLE runs (id TEXT PRIMARY KEY, version INTEGER NOT NULL, record BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE streams (sid INTEGER PRIMARY KEY, seq INTEGER NOT NULL);
CREATE TABLE events (pos INTEGER PRIMARY KEY, sid INTEGER NOT NULL, seq INTEGER NOT NULL, body BLOB NOT NULL);
CREATE UNIQUE INDEX events_by_stream ON events (sid, seq);
"""


def about() -> dict[str, str]:
    return {
        "name": "bare SQLite",
        "version": apsw.apsw_version(),
        "sqlite": apsw.sqlite_lib_version(),
        "settings": f"no engine: seven statements per unit, {FULL} units per transaction (one for latency), WAL, "
        "synchronous=FULL",
    }


def connect(file: Path) -> apsw.Connection:
    connection = apsw.Connection(str(file), statementcachesize=200)
    connection.execute("PRAGMA journal_mode = WAL").fetchall()
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA wal_autocheckpoint = 4000").fetchall()
    connection.execute(SCHEMA)
    return connection


def apply(cursor: apsw.Cursor, n: int) -> None:
    """Apply one unit: check the fence, finish the job, update the run, append two events, add the next job."""
    execute, run = cursor.execute, n % 1000
    execute("SELECT state, token FROM jobs WHERE pk = ?", (n,)).fetchone()
    execute("UPDATE jobs SET state = 4, result = ? WHERE pk = ?", (PAYLOAD, n))
    execute(
        "INSERT INTO runs (id, version, record) VALUES (?1, 1, ?2) "
        "ON CONFLICT (id) DO UPDATE SET version = version + 1, record = ?2",
        (f"run-{run}", RECORD),
    )
    rows: Any = execute(
        "INSERT INTO streams (sid, seq) VALUES (?, 2) ON CONFLICT (sid) DO UPDATE SET seq = seq + 2 RETURNING seq",
        (run,),
    ).fetchall()
    seq = rows[0][0]
    execute("INSERT INTO events (sid, seq, body) VALUES (?, ?, ?)", (run, seq - 1, BODY))
    execute("INSERT INTO events (sid, seq, body) VALUES (?, ?, ?)", (run, seq, BODY))
    execute("INSERT INTO jobs (id, queue, state, payload) VALUES (?, 'bench', 0, ?)", (f"job-{n}", PAYLOAD))


def transactions(connection: apsw.Connection, n: int, batch: int) -> Iterator[float]:
    """Apply n units, `batch` per transaction. Yield the duration of each transaction in seconds."""
    cursor, units = connection.cursor(), count()
    for _ in range(max(1, n // batch)):
        since = time.monotonic()
        cursor.execute("BEGIN IMMEDIATE")
        for _ in range(batch):
            apply(cursor, next(units))
        cursor.execute("COMMIT")
        yield time.monotonic() - since


def rate(case: Case, batch: int) -> float:
    connection = connect(case.inside(f"batch-{batch}").file)
    seconds = list(transactions(connection, case.n, batch))
    connection.close()
    return len(seconds) * batch / sum(seconds)


def units(case: Case) -> Metrics:
    return {f"batch_{batch}_per_s": rate(case, batch) for batch in BATCHES}


def jobs(case: Case) -> Metrics:
    return {"drain_per_s": rate(case, FULL)}


def flows3(case: Case) -> Metrics:
    return {"drain_per_s": rate(replace(case, n=3 * case.n), FULL) / 3}


def step_latency(case: Case) -> Metrics:
    return latency(list(transactions(connect(case.file), case.n, 1)))


main(about, {"units": units, "jobs": jobs, "flows3": flows3, "step_latency": step_latency})
