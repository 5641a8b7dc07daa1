"""Every command reports every kind of error as one sentence with a code on stderr and exits with 2, without a traceback.

The commands come from the parser, so a new command is covered automatically.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import apsw
import pytest
from cyclopts import App as Parser

from penstock.cli import session
from penstock.cli.command_table import COMMANDS, build_parser
from penstock.stores.sqlite import connection

# Arguments for required parameters, by parameter name.
WORDS = {
    "flow": "greet",
    "shell": "bash",
    "file": "runs.jsonl",
    "kind": "thing.happened",
    "value": "1",
    "dir": "new",
    "action": "cancel",
    "old": "1",
    "new": "2",
}
# Commands that open no store, and those that load no code.
NO_STORE = {
    "init",
    "flows list",
    "flows show",
    "flows",
    "diagram",
    "registry",
    "settings",
    "bench",
    "completion",
    "telemetry export",
}
NO_STORE |= {"dags check", "outbox create", "outbox sql", "outbox list", "outbox retry"}
NO_CODE = {
    "init",
    "settings",
    "bench",
    "completion",
    "telemetry export",
    "outbox create",
    "outbox sql",
    "outbox list",
    "outbox retry",
}
DAG_FILE = "order.dag.json"
MORE = {  # required options
    "schedules add": ["--flow", "greet", "--every", "1m"],
    "dlq redrive": ["--all", "greet"],
    "dlq discard": ["--group", "0123456789ab"],
    "runs fork": ["--at", "0-1"],
    "runs bulk": ["--flow", "greet"],
    "export": ["--all"],
    "events": ["some-id"],
    "logs": ["some-id"],
    "import pgboss": ["--from", "postgresql://nobody@127.0.0.1:1/nothing"],
    "jobs execute": ["--timeout", "10ms"],
    "jobs list": ["--state", "waiting"],
    "outbox create": ["--in", "sqlite:///mine.db"],
    "outbox list": ["--in", "sqlite:///mine.db"],
    "outbox retry": ["--in", "sqlite:///mine.db"],
    "outbox relay": ["--from", "sqlite:///mine.db", "--once"],
}


def _below(parser: Parser, words: tuple[str, ...] = ()) -> Iterator[tuple[str, Callable]]:
    for name in parser:
        if name.startswith("-"):
            continue
        command = parser[name]
        if command.default_command is not None:
            yield " ".join((*words, name)), command.default_command
        yield from _below(command, (*words, name))


EVERY = dict(_below(build_parser()))


def call_of(name: str) -> list[str]:
    """Return a call of a command with everything it requires."""
    signature = inspect.signature(EVERY[name])
    needed = [
        parameter.name
        for parameter in signature.parameters.values()
        if parameter.kind is parameter.POSITIONAL_ONLY and (parameter.default is parameter.empty)
    ]
    words = WORDS | {"file": DAG_FILE} if name.startswith("dags ") else WORDS
    return [*name.split(), *(words.get(word, "some-id") for word in needed), *MORE.get(name, [])]


@pytest.fixture
def refused(penstock: Callable, project: Path) -> Callable[..., str]:
    (project / "runs.jsonl").write_text("")
    nodes = [{"id": "pause", "type": "delay", "config": {"duration": "1s"}}]
    (project / DAG_FILE).write_text(json.dumps({"id": "order", "nodes": nodes}))

    def call(*args: str) -> str:
        answer = penstock(*args)
        assert "Traceback" not in answer.err + answer.out
        assert "hidden" not in answer.err + answer.out
        assert answer.code == 2, (args, answer)
        assert re.search(r"^error: .+ \[[a-z_]+\]$", answer.err, flags=re.M | re.S), answer.err
        return answer.err.rpartition("[")[2].strip("]\n")

    return call


def test_the_parser_has_every_command_of_the_table() -> None:
    assert [name for name in build_parser() if not name.startswith("-")] == list(COMMANDS)
    assert {name.partition(" ")[0] for name in EVERY} == set(COMMANDS)


@pytest.mark.parametrize("name", sorted(EVERY))
def test_help(penstock: Callable, name: str) -> None:
    answer = penstock(*name.split(), "--help")
    assert (answer.code, answer.err) == (0, "")
    assert f"Usage: penstock {name.partition(' ')[0]}" in answer.out
    assert "--json" in answer.out
    assert "--debug" in answer.out


@pytest.mark.parametrize("name", ["runs cancel", "queues drain", "jobs remove"])
def test_the_help_explains_that_scripts_are_not_asked(penstock: Callable, name: str) -> None:
    help = " ".join(penstock(*name.split(), "--help").out.replace("│", " ").split())
    assert "Without a terminal, such as in a script, there is no prompt." in help


@pytest.mark.parametrize("name", sorted(EVERY))
def test_bad_arguments(refused: Callable, name: str) -> None:
    assert refused(*call_of(name), "--no-such-option") == "usage"
    assert refused(*call_of(name), *["one-too-many"] * 5) == "usage"
    assert refused(*call_of(name), "--url") == "usage"
    if len(call_of(name)) > len(name.split()) and name not in MORE:
        assert refused(*name.split()) == "usage"


@pytest.mark.parametrize("name", sorted(EVERY))
def test_a_bad_setting(refused: Callable, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv("PENSTOCK_LEASE", "soon")
    if name in ("init", "completion", "telemetry export", "outbox create", "outbox sql"):
        pytest.skip("it reads no settings")
    assert refused(*call_of(name)) in ("bad_setting", "checks_failed")


@pytest.mark.parametrize("name", sorted(EVERY.keys() - NO_CODE - {"migrate"}))
def test_a_missing_folder(refused: Callable, name: str) -> None:
    assert refused(*call_of(name), "--dir", "nowhere") in ("config_error", "checks_failed")


@pytest.mark.parametrize("name", sorted(EVERY.keys() - NO_STORE))
def test_a_store_that_cannot_be_opened(
    refused: Callable, project: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(session, "CONNECT_TIMEOUT_S", 0.01)
    (project / "bad.db").write_bytes(b"this is not a database, whatever its name is" * 100)
    for url in ("nonsense", "sqlite:///workers", "redis://user:hidden@127.0.0.1:1/0"):
        assert refused(*call_of(name), "--url", url) in ("bad_setting", "store_unavailable", "checks_failed")
    assert refused(*call_of(name), "--url", "sqlite:///bad.db") in ("store_corrupt", "checks_failed")


@pytest.fixture(scope="module")
def database_bytes() -> bytearray:
    """The database of a project with a run; the first test that needs it fills it."""
    return bytearray()


@pytest.fixture
def database(penstock: Callable, project: Path, database_bytes: bytearray) -> Path:
    """A database with a run."""
    path = project / ".penstock" / "penstock.db"
    if not database_bytes:
        penstock("start", "greet", "--key", "some-id")
        with apsw.Connection(str(path)) as db:
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        db.close()
        database_bytes += path.read_bytes()
        return path
    path.parent.mkdir()
    path.write_bytes(database_bytes)
    return path


@pytest.mark.parametrize("name", sorted(EVERY.keys() - NO_STORE))
def test_a_database_that_is_locked_or_damaged(
    refused: Callable, database: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(connection, "BUSY_TIMEOUT_S", 0.005)
    with _locked(database):
        assert refused(*call_of(name)) in ("store_unavailable", "checks_failed")
    data = bytearray(database.read_bytes())
    data[100:] = b"\xa5" * (len(data) - 100)  # the header is whole, the rest is not
    database.write_bytes(data)
    assert refused(*call_of(name)) in ("store_corrupt", "store_error", "checks_failed")


class _locked:  # noqa: N801
    """A database that another program has locked."""

    def __init__(self, path: Path) -> None:
        self._db = apsw.Connection(str(path))

    def __enter__(self) -> None:
        self._db.execute("PRAGMA locking_mode = EXCLUSIVE").fetchall()
        self._db.execute("BEGIN EXCLUSIVE")

    def __exit__(self, *_: object) -> None:
        self._db.execute("ROLLBACK")
        self._db.close()


def test_missing_files(refused: Callable) -> None:
    assert refused("import", "nope.jsonl") == "usage"
    assert refused("import", "workers") == "usage"
    assert refused("diagram", "greet", "--output", "no/where.svg") == "usage"
    assert refused("state", "set", "a", "@nope.json") == "usage"
    assert refused("emit", "a.b", "--data", "@nope.json") == "usage"


def test_reading_creates_no_store(refused: Callable) -> None:
    creates_one = NO_STORE | {
        "run",
        "start",
        "worker",
        "dev",
        "serve",
        "tokens add",
        "emit",
        "enqueue",
        "schedules add",
        "doctor",
        "import",
    }
    creates_one |= {"check", "dags register", "import pgboss", "outbox relay", "migrate"}
    creates_one |= {"jobs execute", "entities emit"}
    creates_one.add("entities types")  # it works without a store
    for name in sorted(EVERY.keys() - creates_one):
        assert refused(*call_of(name)) in ("not_found", "unknown_run"), name
    assert not Path(".penstock").exists() or not list(Path(".penstock").iterdir())
