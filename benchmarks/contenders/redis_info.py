"""CPU time and memory of a Redis server, from INFO."""

from __future__ import annotations

from redis import Redis


def connect(url: str) -> Redis:
    return Redis.from_url(url)


def cpu_us(url: str) -> float:
    """Return the CPU time used so far, in microseconds.

    Redis also reports the time of scripts, but in wall-clock time, which other busy processes distort."""
    with connect(url) as redis:
        used = redis.info("cpu")
    return float(used["used_cpu_user"] + used["used_cpu_sys"]) * 1e6


def bytes_used(url: str) -> int:
    """Return the memory of the data, as reported by Redis."""
    with connect(url) as redis:
        return int(redis.info("memory")["used_memory_dataset"])
