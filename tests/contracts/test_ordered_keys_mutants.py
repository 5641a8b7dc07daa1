"""The contract of ordered keys catches stores that break the order: each mutant is a bug put into one store."""

from __future__ import annotations

import random
from typing import Any

import pytest

import postgres_server
import redis_server
from penstock.ports.unit import Unit
from penstock.stores.postgres import PostgresStore
from penstock.stores.redis import RedisStore
from penstock.stores.sqlite import SqliteStore, order_keys
from penstock.testing import FakeClock
from penstock.testing.contracts.ordered_keys import OrderedWorkload
from store_mutants import rewrite_postgres, rewrite_redis

SEEDS = range(6)


class Mutations:
    """Puts bugs into the stores."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch

    def free_keys_on_retry(self) -> None:
        ends = property(lambda unit: unit.order_key is not None and unit.outcome is not None)
        self._monkeypatch.setattr(Unit, "frees_order_key", ends)

    def rewrite_sqlite(self, old: str, new: str) -> None:
        sql = order_keys.SQL
        changed = {name: text.replace(old, new) for name, text in vars(sql).items() if "order" in name}
        assert any(vars(sql)[name] != text for name, text in changed.items())
        for name, text in changed.items():
            self._monkeypatch.setattr(sql, name, text)


@pytest.fixture
def mutations(monkeypatch: pytest.MonkeyPatch) -> Mutations:
    return Mutations(monkeypatch)


async def _is_caught(make: Any) -> bool:
    for seed in SEEDS:
        clock = FakeClock()
        store = make(clock)
        await store.open()
        try:
            await OrderedWorkload(store, clock, random.Random(seed)).run()
        except AssertionError:
            return True
        finally:
            await store.close()
    return False


async def test_a_retry_that_releases_the_next_job_is_caught_on_sqlite(mutations: Mutations) -> None:
    mutations.free_keys_on_retry()
    mutations.rewrite_sqlite("state < 4 ORDER BY pk", "state = -1 AND state < 4 ORDER BY pk")
    assert await _is_caught(lambda clock: SqliteStore(clock=clock))


async def test_a_retry_that_releases_the_next_job_is_caught_on_redis(monkeypatch: pytest.MonkeyPatch) -> None:
    rewrite_redis(
        monkeypatch,
        "if claim.order_key and FINAL[outcome.kind] then",
        "if claim.order_key and call('ZREM', order_of(base, claim.order_key), claim.job) then",
    )
    assert await _is_caught(lambda clock: RedisStore(redis_server.url(), clock=clock))


async def test_a_retry_that_releases_the_next_job_is_caught_on_postgres(
    mutations: Mutations, monkeypatch: pytest.MonkeyPatch
) -> None:
    mutations.free_keys_on_retry()
    rewrite_postgres(monkeypatch, "AND j.order_key = k.key AND j.state < 4", "AND j.order_key = k.key AND j.state = -1")
    assert await _is_caught(lambda clock: PostgresStore(postgres_server.url(), clock=clock))


async def test_an_end_that_releases_no_job_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Unit, "frees_order_key", False)
    assert await _is_caught(lambda clock: SqliteStore(clock=clock))
    assert await _is_caught(lambda clock: PostgresStore(postgres_server.url(), clock=clock))
    rewrite_redis(monkeypatch, "if claim.order_key and FINAL", "if false and FINAL")
    assert await _is_caught(lambda clock: RedisStore(redis_server.url(), clock=clock))


async def test_a_store_without_mutants_passes() -> None:
    assert not await _is_caught(lambda clock: SqliteStore(clock=clock))
