"""Commands that only read create nothing: no file, no table, no key. A new command is covered unless it is listed here."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import redis
from test_every_command import EVERY, NO_STORE, call_of

import postgres_server
import redis_server

STARTS_WORK = {"run", "start", "worker", "dev", "emit", "enqueue", "schedules add", "import", "import pgboss"}
STARTS_WORK |= {
    "jobs execute",
    "entities emit",
    "dags register",
    "outbox relay",
    "migrate",
    "serve",
    "tokens add",
    "webhooks add",
    "blobs put",
}
CHANGES = {"fire", "state set", "state delete", "tokens revoke", "webhooks receive", "webhooks remove"}
CHANGES |= {f"alerts {verb}" for verb in ("check", "test", "silence", "unsilence")} | {"blobs delete"}
CHANGES |= {f"waits {verb}" for verb in ("resolve", "cancel", "token")}
CHANGES |= {f"runs {verb}" for verb in ("pause", "resume", "cancel", "retry", "replay", "fork")}
CHANGES |= {f"queues {verb}" for verb in ("pause", "resume", "drain")}
CHANGES |= {f"jobs {verb}" for verb in ("cancel", "retry", "remove", "promote")}
CHANGES |= {f"dlq {verb}" for verb in ("redrive", "discard")}
CHANGES |= {f"dags {verb}" for verb in ("activate", "deactivate", "retry")}
CHANGES |= {f"schedules {verb}" for verb in ("pause", "resume", "remove", "run-now")}
READS = sorted(EVERY.keys() - NO_STORE - STARTS_WORK - CHANGES)
NEED_A_STORE = sorted(EVERY.keys() - NO_STORE - STARTS_WORK)  # without one there is nothing to change either


class Place:
    """A store that nobody has set up, its URL, and all that is there."""

    def __init__(self, kind: str, folder: Path) -> None:
        self._kind, self._folder = kind, folder
        urls = {"redis": redis_server.url, "postgres": postgres_server.url}
        self.url = urls[kind]() if kind in urls else "sqlite:///.penstock/penstock.db"

    def contents(self) -> object:
        """Return the names and contents of files or keys, or the tables of every schema and their sizes."""
        if self._kind == "redis":
            with closing(redis.Redis.from_url(self.url)) as client:
                return {key: client.dump(key) for key in client.scan_iter()}
        if self._kind == "postgres":
            objects = "SELECT n.nspname, c.relname FROM pg_namespace n LEFT JOIN pg_class c ON c.relnamespace = n.oid"
            return sorted(map(str, postgres_server.server().do(objects)))
        return {
            path.name: hashlib.sha256(path.read_bytes()).hexdigest()
            for path in sorted(self._folder.glob(".penstock/*.db"))
        }


@pytest.fixture(params=["sqlite", "postgres", "redis"])
def place(request: pytest.FixtureRequest, project: Path) -> Place:
    return Place(request.param, project)


def test_the_lists_name_commands_that_exist() -> None:
    assert {"runs list", "events", "tail", "waits list", "jobs list", "dlq show", "doctor", "check"} <= set(READS)


def check_every_reader(penstock: Callable, place: Place) -> None:
    for name in READS:
        before = place.contents()
        penstock(*call_of(name), "--url", place.url)
        assert place.contents() == before, name


def test_reading_a_store_that_is_not_set_up(penstock: Callable, place: Place) -> None:
    check_every_reader(penstock, place)


def test_reading_a_store_with_work(penstock: Callable, place: Place) -> None:
    assert penstock("run", "greet", "--key", "some-id", "--input", '"Ada"', "--url", place.url).code == 0
    check_every_reader(penstock, place)


def test_a_mistyped_schema_is_named_with_the_near_one(penstock: Callable) -> None:
    right = postgres_server.server().url("orders_of_the_shop")
    assert penstock("migrate", "--url", right).code == 0
    for name in NEED_A_STORE:
        answer = penstock(*call_of(name), "--url", right.replace("of_the", "of_teh"))
        assert answer.code == 2, name
        output = " ".join((answer.out + answer.err).split())
        assert f"{urlsplit(right).path} (schema orders_of_teh_shop) has no Penstock tables yet" in output, name
        assert "did you mean schema=orders_of_the_shop?" in output, name
        assert "run `penstock migrate`" in output, name


def test_an_empty_file_is_no_store(penstock: Callable, project: Path) -> None:
    (project / "empty.db").touch()
    answer = penstock("runs", "--url", "sqlite:///empty.db")
    assert answer.code == 2
    assert "no store at empty.db" in answer.err
    assert not (project / "empty.db").stat().st_size


def test_writers_create_what_they_need(penstock: Callable, place: Place) -> None:
    before = place.contents()
    assert penstock("start", "greet", "--url", place.url).code == 0
    assert place.contents() != before
