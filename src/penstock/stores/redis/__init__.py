"""The Redis store, on BullMQ's queues."""

from .store import RedisStore

__all__ = ["RedisStore"]
