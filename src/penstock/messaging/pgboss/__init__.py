"""pg-boss, the job queue of Node on Postgres: its queues are consumed from and produced to."""

from .bridge import PgBoss
from .schema import PgBossSchema
from .targets import AddJob, EmitEvent, StartFlow

__all__ = ["AddJob", "EmitEvent", "PgBoss", "PgBossSchema", "StartFlow"]
