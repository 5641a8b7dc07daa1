"""Known bugs of a store on Redis, put back on purpose; see `mutants` for why. Each takes what undoes it afterwards."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, Protocol

import msgspec

import penstock.commit.committer as group_commit
from penstock.core.errors import StoreError, StoreFull
from penstock.ports.unit import ClaimRequest, CommitReply, Committed, Unit
from penstock.stores.redis import scripts, store


class Patch(Protocol):
    """What pytest's monkeypatch does; in a process that is to be killed anyway, plain `setattr`."""

    def setattr(self, target: object, name: str, value: object) -> None: ...


class ForLife:
    """Changes that nobody takes back."""

    def setattr(self, target: object, name: str, value: object) -> None:
        setattr(target, name, value)


def _rewrite(patch: Patch, *changes: tuple[str, str]) -> None:
    """Replaces parts of our scripts, each of which must be there."""
    made = {name: scripts.Script(name, script.text) for name, script in scripts.scripts().items()}
    for old, new in changes:
        holders = [name for name, script in made.items() if old in script.text]
        assert holders, f"no script holds {old!r} any longer: bring the mutant up to date"
        for name in holders:
            made[name] = scripts.Script(name, made[name].text.replace(old, new))
    given = cache(lambda: made)
    patch.setattr(store, "scripts", given)
    from penstock.stores.redis import connection

    patch.setattr(connection, "scripts", given)


def split_units(patch: Patch) -> None:
    """An attempt's events and the jobs they start are two scripts."""
    whole = store.RedisStore.commit

    async def commit(self: Any, units: Sequence[Unit], ask: ClaimRequest | None = None) -> CommitReply:
        reply = await whole(self, [msgspec.structs.replace(unit, jobs=[]) for unit in units], ask)
        rest = [
            Unit(f"{unit.id}-jobs", jobs=unit.jobs)
            for unit, receipt in zip(units, reply.receipts, strict=True)
            if unit.jobs and isinstance(receipt, Committed) and not receipt.repeated
        ]
        if rest:
            await whole(self, rest)
        return reply

    patch.setattr(store.RedisStore, "commit", commit)


def no_fence(patch: Patch) -> None:
    """A commit is taken whoever holds the job now."""
    _rewrite(
        patch,
        ("if job[1] ~= claim.token or job[2] ~= claim.attempt then return FENCED end", ""),
        ("if lock or not call('LPOS', base .. 'active', claim.job) then return FENCED end", ""),
    )


def repeats_unseen(patch: Patch) -> None:
    """A unit sent again after a lost reply is not recognised."""
    _rewrite(
        patch,
        ("if job[3] == unit then return REPEATED end", ""),
        ("if current_run[5] == unit then return REPEATED end", ""),
        ("if needs_record and call('ZSCORE', NS .. 'units', unit) then return REPEATED end", ""),
    )


def memory_outlives_the_server(patch: Patch) -> None:
    """What is known of runs is relied on after the server has come back without its last writes."""
    patch.setattr(store.RedisStore, "rewind_epoch", 0)


def dropped_when_full(patch: Patch) -> None:
    """What a full store refuses is given up."""
    real = store.translate

    class Refused(StoreFull, StoreError):
        pass

    async def told_at_once(self: Any, batch: Any, problem: Any) -> None:
        for request in batch:
            request.fail(problem)

    def translate(problem: Exception, place: str) -> StoreError:
        found = real(problem, place)
        return Refused(str(found)) if isinstance(found, StoreFull) else found

    patch.setattr(store, "translate", translate)
    patch.setattr(group_commit.Committer, "_wait_and_repeat", told_at_once)


def apply(name: str) -> None:
    """For a process that a test has started."""
    globals()[name](ForLife())
