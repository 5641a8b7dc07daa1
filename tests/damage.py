"""Damages records of a store behind its back, on every kind of store."""

from __future__ import annotations

import socket
from contextlib import closing
from urllib.parse import parse_qs, urlsplit

import apsw

import postgres_server

# What no decoder of ours accepts: no JSON, bytes that are no text, nothing, and JSON of another shape.
JUNK: dict[str, bytes] = {
    "no JSON": b"this is not JSON",
    "no text": b"\xff\xfe\x00\x80",
    "nothing": b"",
    "a number": b"5",
    "a list": b"[]",
    "null": b"null",
    "wrong types": b'{"flow":5,"tags":{"a":null},"key":[],"spec":1,"kind":[]}',
}
JSON_JUNK = {name: value for name, value in JUNK.items() if name not in ("no JSON", "no text", "nothing")}


class Damage:
    """Overwrites the bytes of single records."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.kind = url.partition(":")[0]

    def run(self, id: str, data: bytes) -> None:
        self._set("runs", "record", {"id": id}, data, f"nq:run:{id}")

    def wait(self, id: str, data: bytes) -> None:
        self._set("waits", "body", {"id": id}, data, f"nq:wait:{id}")

    def state(self, key: str, data: bytes) -> None:
        self._set("states", "value", {"key": key}, data, f"nq:state:{key}")

    def memo(self, scope: str, name: str, data: bytes) -> None:
        self._set("memos", "value", {"scope": scope, "name": name}, data, f"nq:memos:{scope}", name)

    def schedule(self, id: str, part: str, data: bytes) -> None:
        self._set("schedules", part, {"id": id}, data, f"nq:schedule:{id}")

    def event(self, stream: str, seq: int, body: bytes) -> None:
        """Overwrite the body of an event."""
        if self.kind == "redis":
            # An entry of a stream cannot be changed: write the stream again, with the damaged entry in its place.
            entries = self.redis("XRANGE", stream, "-", "+")
            self.redis("DEL", stream)
            for id, fields in entries:
                new = [*fields]
                if id.endswith(b"-%d" % seq):
                    new[1] = body
                self.redis("XADD", stream, id, *new)
            return
        sid = f"(SELECT sid FROM {{}}streams WHERE name = '{stream}')"
        self._execute("events", "body", f"sid = {sid} AND seq = {seq}", body)

    def _set(
        self, table: str, column: str, key: dict[str, str], data: bytes, redis_key: str, field: str | None = None
    ) -> None:
        if self.kind == "redis":
            self.redis("HSET", redis_key, field or column, data)
            return
        self._execute(table, column, " AND ".join(f"{name} = '{value}'" for name, value in key.items()), data)

    def _execute(self, table: str, column: str, where: str, data: bytes) -> None:
        if self.kind == "sqlite":
            with closing(apsw.Connection(self.url.removeprefix("sqlite:///"))) as db:
                db.set_busy_timeout(10_000)
                db.execute(f"UPDATE {table} SET {column} = ? WHERE {where.format('')}", (data,))
                assert db.changes() == 1, f"no row of {table} where {where}"
            return
        schema = parse_qs(urlsplit(self.url).query)["schema"][0]
        value = f"convert_from('\\x{data.hex()}', 'UTF8')::json" if table == "events" else f"'\\x{data.hex()}'::bytea"
        postgres_server.server().do(
            f"UPDATE {schema}.{table} SET {column} = {value} WHERE {where.format(schema + '.')}"
        )

    def redis(self, *parts: str | bytes) -> list[list[list[bytes]]]:
        """Send a command to the database of the URL and return its reply."""
        import hiredis

        found = urlsplit(self.url)
        with socket.create_connection((found.hostname or "", found.port or 0), 10) as connection:
            reader = hiredis.Reader()
            for command in (("SELECT", found.path[1:]), parts):
                connection.sendall(hiredis.pack_command(tuple(command)))
                while (reply := reader.gets()) is False:
                    reader.feed(connection.recv(65536))
                assert not isinstance(reply, Exception), reply
        return reply  # type: ignore[no-any-return]
