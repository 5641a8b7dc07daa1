"""A state machine of the library `transitions` and a queue by hand: one transaction claims an event, moves the entity
and removes the event. One worker, so that the events of an entity stay in order.

python transitions_by_hand.py URL EVENTS URNS    # prints events per second
"""

import json
import sqlite3
import sys
import time

from transitions import Machine

URL, EVENTS, URNS = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])


class Tally:
    def __init__(self, data):
        self.data = data

    def count(self):
        self.data["count"] = self.data.get("count", 0) + 1


MACHINE = Machine(model=None, states=["open"], initial="open", auto_transitions=False)
MACHINE.add_transition("add", "open", "open", after="count")


def apply(status, data, event):
    """Return the status and the data after an event."""
    model = Tally(json.loads(data))
    MACHINE.add_model(model, initial=status)
    model.trigger(event)
    MACHINE.remove_model(model)
    return model.state, json.dumps(model.data)


SCHEMA = (
    "CREATE TABLE {p}entities (urn TEXT PRIMARY KEY, status TEXT NOT NULL, data TEXT NOT NULL)",
    "CREATE TABLE {p}queue (id {id}, urn TEXT NOT NULL, event TEXT NOT NULL)",
)


def run_sqlite(path):
    db = sqlite3.connect(path, isolation_level=None)
    db.execute("PRAGMA journal_mode=WAL")
    db.execute("PRAGMA synchronous=FULL")
    db.execute("DROP TABLE IF EXISTS entities")
    db.execute("DROP TABLE IF EXISTS queue")
    for statement in SCHEMA:
        db.execute(statement.format(p="", id="INTEGER PRIMARY KEY"))
    db.execute("BEGIN")
    db.executemany("INSERT INTO entities VALUES (?, 'open', '{}')", [(f"tally-{n}",) for n in range(URNS)])
    db.executemany("INSERT INTO queue (urn, event) VALUES (?, 'add')", [(f"tally-{n % URNS}",) for n in range(EVENTS)])
    db.execute("COMMIT")
    began = time.perf_counter()
    while True:
        db.execute("BEGIN IMMEDIATE")
        row = db.execute("SELECT id, urn, event FROM queue ORDER BY id LIMIT 1").fetchone()
        if row is None:
            db.execute("COMMIT")
            return time.perf_counter() - began
        status, data = db.execute("SELECT status, data FROM entities WHERE urn = ?", (row[1],)).fetchone()
        db.execute("UPDATE entities SET status = ?, data = ? WHERE urn = ?", (*apply(status, data, row[2]), row[1]))
        db.execute("DELETE FROM queue WHERE id = ?", (row[0],))
        db.execute("COMMIT")


def run_postgres(url):
    import psycopg

    with psycopg.connect(url, autocommit=True) as db:
        db.execute("DROP SCHEMA IF EXISTS by_hand CASCADE")
        db.execute("CREATE SCHEMA by_hand")
        for statement in SCHEMA:
            db.execute(statement.format(p="by_hand.", id="BIGSERIAL PRIMARY KEY"))
        db.execute(
            f"INSERT INTO by_hand.entities SELECT 'tally-' || n, 'open', '{{}}' FROM generate_series(0, {URNS - 1}) n"
        )
        db.execute(
            "INSERT INTO by_hand.queue (urn, event) "
            f"SELECT 'tally-' || n % {URNS}, 'add' FROM generate_series(0, {EVENTS - 1}) n"
        )
        began = time.perf_counter()
        while True:
            with db.transaction():
                row = db.execute(
                    "SELECT id, urn, event FROM by_hand.queue ORDER BY id LIMIT 1 FOR UPDATE SKIP LOCKED"
                ).fetchone()
                if row is None:
                    return time.perf_counter() - began
                found = db.execute("SELECT status, data FROM by_hand.entities WHERE urn = %s", (row[1],)).fetchone()
                values = (*apply(*found, row[2]), row[1])
                db.execute("UPDATE by_hand.entities SET status = %s, data = %s WHERE urn = %s", values)
                db.execute("DELETE FROM by_hand.queue WHERE id = %s", (row[0],))


def run_redis(url):
    import redis

    db = redis.Redis.from_url(url)
    db.delete("by-hand:queue", "by-hand:busy")
    for n in range(URNS):
        db.hset(f"by-hand:tally-{n}", mapping={"status": "open", "data": "{}"})
    db.rpush("by-hand:queue", *(json.dumps([f"tally-{n % URNS}", "add", n]) for n in range(EVENTS)))
    began = time.perf_counter()
    while (job := db.lmove("by-hand:queue", "by-hand:busy")) is not None:
        urn, event, _ = json.loads(job)
        status, data = db.hmget(f"by-hand:{urn}", "status", "data")
        status, data = apply(status.decode(), data, event)
        with db.pipeline(transaction=True) as unit:
            unit.hset(f"by-hand:{urn}", mapping={"status": status, "data": data})
            unit.lrem("by-hand:busy", 1, job)
            unit.execute()
    return time.perf_counter() - began


scheme, _, place = URL.partition("://")
if scheme == "sqlite":
    seconds = run_sqlite(f"/{place.lstrip('/')}")
elif scheme.startswith("redis"):
    seconds = run_redis(URL)
else:
    seconds = run_postgres(URL.partition("?")[0])
print(EVENTS / seconds)
