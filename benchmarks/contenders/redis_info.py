"""What a Redis server says of itself."""

from __future__ import annotations

from redis import Redis


def connect(url: str) -> Redis:
    return Redis.from_url(url)


def cpu_us(url: str) -> float:
    """Microseconds of processor time so far.

    Redis also counts what scripts take, but by the clock: other busy processes would be counted with them."""
    with connect(url) as redis:
        used = redis.info("cpu")
    return float(used["used_cpu_user"] + used["used_cpu_sys"]) * 1e6


def bytes_used(url: str) -> int:
    """The memory of the data, as Redis counts it."""
    with connect(url) as redis:
        return int(redis.info("memory")["used_memory_dataset"])
