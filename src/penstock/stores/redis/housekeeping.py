"""What a Redis must be like, and facts about it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ...core.errors import ConfigError, StoreError
from ...ports.store import Retention
from .connection import Client

# For how long keys of `once` and ids of units are kept: a reply lost longer ago than a day is not asked for again.
KEPT_MS = (7 * 86_400_000, 86_400_000)
OLDEST = (6, 2)


async def check_place(client: Client, namespace: str, prefix: str) -> None:
    """Refuses a Redis that is too old, names that a cluster would spread, and keys we may not write."""
    facts = await _info(client)
    version = facts.get("redis_version", "0")
    if tuple(int(part) for part in version.split(".")[:2]) < OLDEST:
        raise StoreError(f"{client.place} is Redis {version}: {'.'.join(map(str, OLDEST))} or newer is needed")
    if facts.get("cluster_enabled") == "1" and (_tag(namespace) is None or _tag(namespace) != _tag(prefix)):
        raise ConfigError(
            f"{client.place} is a cluster, and {namespace!r} and {prefix!r} would be spread over its servers: put the "
            f"namespace in braces (PENSTOCK_NAMESPACE='{{nq}}'); a prefix of your own begins with it ({{nq}}:{prefix})"
        )
    # A script that may touch some keys and not others would be stopped in the middle of a unit: asked for now.
    await client.call("DEL", f"{namespace}:probe", f"{prefix}:probe")


def usual_prefix(namespace: str) -> str:
    """How the keys of queues begin unless we are told: as BullMQ's do, in the slot of the namespace if it names one."""
    return "bull" if _tag(namespace) is None else f"{namespace}:bull"


def given(what: Retention) -> tuple[int | None, ...]:
    """What the sweeping script is told, in its order."""
    counts = [count for count in (what.keep_jobs, what.keep_deliveries) if count is not None]
    return (
        what.runs_before, what.keep_runs, what.jobs_before, what.keep_jobs, min(counts, default=None),
        what.events_before, what.keep_events,
    )  # fmt: skip


async def describe(client: Client) -> dict[str, Any]:
    """Facts for `doctor` and error reports."""
    facts = await _info(client)
    facts["aof_load_truncated"] = await _setting(client, "aof-load-truncated")
    return {
        "store": "redis",
        "redis": facts.get("redis_version"),
        "maxmemory_policy": facts.get("maxmemory_policy"),
        "aof": facts.get("aof_enabled") == "1",
        "bytes": int(facts.get("used_memory", 0)),
        "doubts": list(_doubts(facts)),
    }


def _doubts(facts: dict[str, str]) -> Iterator[str]:
    """What would lose work one day."""
    policy = facts.get("maxmemory_policy", "noeviction")
    if policy != "noeviction":
        yield f"maxmemory-policy is {policy}, so Redis forgets work when memory is short: set it to noeviction"
    if facts.get("aof_enabled") != "1":
        yield "appendonly is no, so a crash of Redis loses what came after its last snapshot: set it to yes"
    elif facts.get("aof_load_truncated") == "yes":
        yield (
            "aof-load-truncated is yes: a Redis that finds half a transaction at the end of its log keeps part of it, "
            "which comes to life at the start after: set it to no, and run redis-check-aof --fix before a start"
        )


async def _setting(client: Client, name: str) -> str:
    """A setting of the server, or nothing if we may not ask."""
    try:
        found = await client.call("CONFIG", "GET", name)
    except StoreError:
        return ""
    return found[1].decode() if found else ""


async def _info(client: Client) -> dict[str, str]:
    text = (await client.call("INFO")).decode()
    return dict(line.split(":", 1) for line in text.splitlines() if ":" in line)


def _tag(name: str) -> str | None:
    """What a cluster goes by: the first braces that hold something."""
    _, opened, rest = name.partition("{")
    tag, closed, _ = rest.partition("}")
    return tag if opened and closed and tag else None
