"""Checks a Redis server when a store is opened, and describes it for `doctor`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ...core.errors import ConfigError, StoreError
from ..namespace_owner import check_owner
from .connection import Client

MIN_VERSION = (6, 2)
DEFAULT_NAMESPACE = "nq"


async def check_server(client: Client, namespace: str, prefix: str) -> None:
    """Refuse a Redis that is too old, key names that a cluster would spread, and keys that we may not write."""
    facts = await _info(client)
    version = facts.get("redis_version", "0")
    if tuple(int(part) for part in version.split(".")[:2]) < MIN_VERSION:
        raise StoreError(
            f"{client.topology} is Redis {version}; {'.'.join(map(str, MIN_VERSION))} or newer is required"
        )
    if facts.get("cluster_enabled") == "1" and (_tag(namespace) is None or _tag(namespace) != _tag(prefix)):
        tag = f"{{{namespace.strip('{}')}}}"
        raise ConfigError(
            f"{client.topology} is a Redis Cluster, which would store the keys of {namespace!r} and {prefix!r} on "
            f"several nodes. Give all keys the same hash tag: set PENSTOCK_NAMESPACE='{tag}'. If you also set "
            f"?prefix=, let it start with '{tag}:'"
        )
    # A script with access to only some keys would fail in the middle of a unit, so check now.
    await client.call("DEL", f"{namespace}:probe", f"{prefix}:probe")


async def check_prefix(client: Client, namespace: str, prefix: str, *, claims_it: bool) -> None:
    """Raise if BullMQ's prefix belongs to another namespace, or if the keys of queues and of a namespace would have
    the same names. To claim the prefix for this one takes a write."""
    where = f"prefix {prefix!r} of {client.topology}"
    way_out = "add ?prefix={namespace}:bull to the URL"
    if prefix == namespace:
        raise ConfigError(
            f"{where} is also the namespace, so queues would write its keys; {way_out}, or remove ?prefix="
        )
    if claims_it:
        await client.call("SET", f"{prefix}:penstock:namespace", namespace, "NX")
    check_owner(await prefix_owner(client, prefix), namespace, where, way_out)
    other = await prefix_owner(client, namespace)
    if other is not None:
        raise ConfigError(
            f"namespace {namespace!r} of {client.topology} is the prefix of the queues of namespace {other!r}, "
            "so their keys would have the same names; choose another namespace"
        )
    if await client.call("EXISTS", f"{prefix}:stream_heads"):
        raise ConfigError(f"{where} is another namespace, so queues would write its keys; {way_out}")


async def prefix_owner(client: Client, prefix: str) -> str | None:
    """Return the namespace that a prefix of BullMQ belongs to, None if it belongs to none."""
    key = f"{prefix}:penstock:namespace"
    try:
        owner = await client.call("GET", key)
    except StoreError as problem:
        if "WRONGTYPE" not in str(problem):
            raise
        raise StoreError(
            f"the key {key} of {client.topology} must be a string, but another program changed its type; delete it"
        ) from None
    return None if owner is None else owner.decode(errors="replace")


def default_queue_prefix(namespace: str) -> str:
    """Return the prefix of a namespace's queues: BullMQ's default for ours, `<namespace>:bull` for any other."""
    return "bull" if namespace == DEFAULT_NAMESPACE else f"{namespace}:bull"


async def describe(client: Client) -> dict[str, Any]:
    """Return facts for `doctor` and error reports."""
    facts = await _info(client)
    facts["aof_load_truncated"] = await _setting(client, "aof-load-truncated")
    facts["appendfsync"] = await _setting(client, "appendfsync")
    return {
        "store": "redis",
        "redis": facts.get("redis_version"),
        "maxmemory_policy": facts.get("maxmemory_policy"),
        "aof": facts.get("aof_enabled") == "1",
        "bytes": int(facts.get("used_memory", 0)),
        "doubts": list(_risks(facts)),
        "warnings": list(_warnings(facts)),
    }


def _risks(facts: dict[str, str]) -> Iterator[str]:
    """Yield settings that can lose work."""
    policy = facts.get("maxmemory_policy", "noeviction")
    if policy != "noeviction":
        yield f"maxmemory-policy is {policy}, so Redis deletes jobs when memory is short; set it to noeviction"
    if facts.get("aof_enabled") != "1":
        yield "appendonly is no, so a crash of Redis loses everything since the last snapshot; set it to yes"
    elif facts.get("aof_load_truncated") == "yes":
        yield (
            "aof-load-truncated is yes, so a Redis that finds half a transaction at the end of its log applies "
            "part of it at the next start. Set it to no, and run redis-check-aof --fix before a start"
        )


def _warnings(facts: dict[str, str]) -> Iterator[str]:
    """Yield settings that lose acknowledged work only if the server is killed, and those that could not be read."""
    if facts.get("aof_enabled") != "1":
        return  # a risk already
    fsync = facts.get("appendfsync")
    if not fsync:
        yield (
            "appendfsync and aof-load-truncated could not be checked, because CONFIG GET is refused here; "
            "acknowledged work survives a killed Redis only with appendfsync always"
        )
    elif fsync != "always":
        yield (
            f"appendfsync is {fsync}, so a killed Redis can lose acknowledged work of the last seconds; "
            "set it to always if acknowledged must mean durable"
        )


async def _setting(client: Client, name: str) -> str:
    """Return a setting of the server; empty if the user may not read it."""
    try:
        found = await client.call("CONFIG", "GET", name)
    except StoreError:
        return ""
    return found[1].decode() if found else ""


async def _info(client: Client) -> dict[str, str]:
    text = (await client.call("INFO")).decode()
    return dict(line.split(":", 1) for line in text.splitlines() if ":" in line)


def _tag(name: str) -> str | None:
    """Return the hash tag of a key: the text in the first braces that are not empty."""
    _, opened, rest = name.partition("{")
    tag, closed, _ = rest.partition("}")
    return tag if opened and closed and tag else None
