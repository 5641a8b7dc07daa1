"""`penstock outbox` creates the table in the user's database and relays it."""

from __future__ import annotations

import signal
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from penstock import SyncApp
from penstock.testing import until

STORE = "sqlite:///store.db"
TEST_TIMEOUT_S = 30


@pytest.fixture
def mine(project: Path, penstock: Callable) -> Iterator[sqlite3.Connection]:
    """A database with an outbox that has two committed starts."""
    connection = sqlite3.connect(project / "mine.db")
    connection.execute("CREATE TABLE orders (id text)")
    for _ in range(2):  # the second call changes nothing
        answer = penstock("outbox", "create", "--in", "sqlite:///mine.db")
        assert (answer.code, answer.out) == (0, "sqlite:///mine.db has an outbox.\n")
    with SyncApp(STORE, "workers") as app:
        app.start("greet", "Ada", key="ada", tx=connection)
        app.start("greet", "Bob", key="bob", tx=connection)
    connection.commit()
    yield connection
    connection.close()


def test_relay_once(mine: sqlite3.Connection, penstock: Callable) -> None:
    relay = ("outbox", "relay", "--from", "sqlite:///mine.db", "--once", "--url", STORE)
    assert penstock(*relay).out == "2 rows relayed.\n"
    assert penstock(*relay, "--json").json == {"from": "sqlite:///mine.db", "rows": 0}
    runs = [line.split()[0] for line in penstock("runs", "--url", STORE).lines]
    assert sorted(runs) == ["ada", "bob", "id"]


async def test_relay_until_stopped(mine: sqlite3.Connection, child: Callable) -> None:
    relay = child("outbox", "relay", "--from", "sqlite:///mine.db", "--every", "5ms", "--url", STORE)
    relay.wait_for_output("Relaying from sqlite:///mine.db to sqlite:///store.db. Stop with Ctrl-C.")
    await until(lambda: not mine.execute("SELECT 1 FROM penstock_outbox").fetchall(), TEST_TIMEOUT_S)
    relay.signal(signal.SIGTERM)
    answer = relay.end()
    assert answer.code == 0
    assert answer.err.endswith("Stopped.\n")


def test_the_statement_for_a_migration(penstock: Callable, project: Path) -> None:
    connection = sqlite3.connect(project / "new.db")
    connection.execute(penstock("outbox", "sql", "--dialect", "sqlite").out)
    assert connection.execute("SELECT seq, id, summary, error FROM penstock_outbox").fetchall() == []
    connection.close()
    assert "bigint GENERATED ALWAYS AS IDENTITY" in penstock("outbox", "sql").out
    answer = penstock("outbox", "sql", "--json").json
    assert (answer["dialect"], answer["sql"] + "\n") == ("postgresql", penstock("outbox", "sql").out)


def test_a_database_without_an_outbox(penstock: Callable, project: Path) -> None:
    sqlite3.connect(project / "new.db").close()
    (project / "new.db").touch()
    answer = penstock("outbox", "relay", "--from", "sqlite:///new.db", "--once", "--url", STORE)
    assert answer.code == 2
    assert "this database has no table penstock_outbox" in answer.err


def test_rows_that_were_set_aside(mine: sqlite3.Connection, penstock: Callable) -> None:
    (first,) = mine.execute("SELECT unit FROM penstock_outbox ORDER BY seq").fetchone()
    mine.execute("UPDATE penstock_outbox SET unit = '{' WHERE seq = 1")
    mine.commit()
    relay = ("outbox", "relay", "--from", "sqlite:///mine.db", "--once", "--url", STORE)
    listing = ("outbox", "list", "--in", "sqlite:///mine.db")
    doctor = ("doctor", "--outbox", "sqlite:///mine.db", "--url", STORE)
    assert penstock(*listing).err == "No row was set aside.\n"
    assert "2 rows waiting in sqlite:///mine.db" in penstock(*doctor).out

    answer = penstock(*relay)
    assert answer.out == "1 row relayed.\n"
    assert "set aside: `penstock outbox list --in sqlite:///mine.db`" in answer.err
    assert penstock(*listing).lines[1].startswith("1 ")
    assert penstock(*listing, "--json").json["error"].startswith("DecodeError: ")
    assert penstock(*listing, "--after", "1").err == "No row was set aside.\n"
    checked = penstock(*doctor)
    assert checked.code == 2
    assert "0 rows waiting in sqlite:///mine.db; rows that cannot be delivered were set aside" in checked.out

    mine.execute("UPDATE penstock_outbox SET unit = ?", [first])
    mine.commit()
    assert penstock(*relay).out == "0 rows relayed.\n"
    assert penstock("outbox", "retry", "1", "--in", "sqlite:///mine.db").out == "The relay tries them again.\n"
    assert penstock(*relay).out == "1 row relayed.\n"
    assert "0 rows waiting in sqlite:///mine.db" in penstock(*doctor).out


def test_doctor_of_a_database_without_an_outbox(penstock: Callable, project: Path) -> None:
    answer = penstock("doctor", "--outbox", "sqlite:///none.db", "--url", STORE)
    assert answer.code == 2
    assert "cannot open the database" in answer.out
    assert "[no_outbox]" in answer.out
