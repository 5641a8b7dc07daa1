"""Put bugs into the stores, to show that tests see them: parts of scripts and functions are replaced."""

from __future__ import annotations

import pytest

from penstock.stores.postgres import migrate
from penstock.stores.redis import connection, scripts
from penstock.stores.redis import store as redis_store


def rewrite_redis(monkeypatch: pytest.MonkeyPatch, old: str, new: str) -> None:
    """Replace a part of the scripts of Redis. It must exist."""
    known = scripts.scripts()
    assert any(old in one.text for one in known.values()), f"no script contains {old!r}: bring the mutant up to date"
    made = {name: scripts.Script(name, one.text.replace(old, new)) for name, one in known.items()}
    for module in (redis_store, connection):
        monkeypatch.setattr(module, "scripts", lambda: made)


def rewrite_postgres(monkeypatch: pytest.MonkeyPatch, old: str, new: str) -> None:
    """Replace a part of the functions of Postgres, for schemas that are created afterwards. It must exist."""
    texts = migrate.functions()
    assert any(old in text for text in texts), f"no function contains {old!r}: bring the mutant up to date"
    monkeypatch.setattr(migrate, "functions", lambda: [text.replace(old, new) for text in texts])
