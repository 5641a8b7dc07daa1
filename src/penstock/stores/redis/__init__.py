"""The Redis store: BullMQ's queues, one script a unit."""

from .store import RedisStore

__all__ = ["RedisStore"]
