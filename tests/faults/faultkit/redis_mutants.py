"""Known bugs of the Redis store, put back on purpose; see `mutants` for why. Each takes a `Patch` that can undo it."""

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
    """The part of pytest's monkeypatch that mutants use."""

    def setattr(self, target: object, name: str, value: object) -> None: ...


class PermanentPatch:
    """Patches that are never undone, for a process that a test started."""

    def setattr(self, target: object, name: str, value: object) -> None:
        assert hasattr(target, name), f"{target!r} has no {name!r}: bring the mutant up to date"
        setattr(target, name, value)


def _rewrite(patch: Patch, *changes: tuple[str, str]) -> None:
    """Replace parts of our scripts; each part must exist."""
    made = {name: scripts.Script(name, script.text) for name, script in scripts.scripts().items()}
    for old, new in changes:
        holders = [name for name, script in made.items() if old in script.text]
        assert holders, f"no script contains {old!r} any longer: bring the mutant up to date"
        for name in holders:
            made[name] = scripts.Script(name, made[name].text.replace(old, new))
    changed = cache(lambda: made)
    patch.setattr(store, "scripts", changed)
    from penstock.stores.redis import connection

    patch.setattr(connection, "scripts", changed)


def split_units(patch: Patch) -> None:
    """Commit an attempt's events and the jobs they start by two scripts."""
    original = store.RedisStore.commit

    async def commit(self: Any, units: Sequence[Unit], request: ClaimRequest | None = None) -> CommitReply:
        reply = await original(self, [msgspec.structs.replace(unit, jobs=[]) for unit in units], request)
        rest = [
            Unit(f"{unit.id}-jobs", jobs=unit.jobs)
            for unit, receipt in zip(units, reply.receipts, strict=True)
            if unit.jobs and isinstance(receipt, Committed) and not receipt.repeated
        ]
        if rest:
            await original(self, rest)
        return reply

    patch.setattr(store.RedisStore, "commit", commit)


def no_fence(patch: Patch) -> None:
    """Accept a commit whichever worker holds the job now."""
    _rewrite(
        patch,
        ("if job[1] ~= claim.token or job[2] ~= claim.attempt then return FENCED end", ""),
        ("if lock or not call('LPOS', base .. 'active', claim.job) then return FENCED end", ""),
    )


def repeats_not_recognised(patch: Patch) -> None:
    """Do not recognise a unit that is repeated after a lost reply."""
    _rewrite(
        patch,
        ("if job[3] == unit then return REPEATED end", ""),
        ("if current_run[5] == unit then return REPEATED end", ""),
        ("if needs_record and call('ZSCORE', NS .. 'units', unit) then return REPEATED end", ""),
    )


def run_cache_outlives_the_server(patch: Patch) -> None:
    """Keep cached run versions after the server came back without its last writes."""
    patch.setattr(store.RedisStore, "rewind_epoch", 0)


def dropped_when_full(patch: Patch) -> None:
    """Give up what a full store refuses."""
    real = store.translate

    class Refused(StoreFull, StoreError):
        pass

    async def fail_at_once(self: Any, batch: Any, problem: Any) -> None:
        for request in batch:
            request.fail(problem)

    def translate(problem: Exception, place: str) -> StoreError:
        found = real(problem, place)
        return Refused(str(found)) if isinstance(found, StoreFull) else found

    patch.setattr(store, "translate", translate)
    patch.setattr(group_commit.Committer, "_wait_and_repeat", fail_at_once)


def apply(name: str) -> None:
    """Apply a mutant for good, in a process that a test started."""
    globals()[name](PermanentPatch())
