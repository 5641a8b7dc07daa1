"""What a Redis server says of itself."""

from __future__ import annotations

from redis import Redis


def connect(url: str) -> Redis:
    return Redis.from_url(url)


def script_us(url: str) -> float:
    """Microseconds spent in scripts so far, what they called included."""
    with connect(url) as redis:
        stats = redis.info("commandstats")
    return float(sum(stats.get(f"cmdstat_{name}", {}).get("usec", 0) for name in ("evalsha", "eval")))


def bytes_used(url: str) -> int:
    """The memory of the data, as Redis counts it."""
    with connect(url) as redis:
        return int(redis.info("memory")["used_memory_dataset"])
