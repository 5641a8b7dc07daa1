"""Consume from and produce to the queues of pg-boss, a job queue for Node on Postgres."""

from ..targets import AddJob, EmitEvent, EmitToEntity, StartFlow
from .bridge import PgBoss
from .schema import PgBossSchema

__all__ = ["AddJob", "EmitEvent", "EmitToEntity", "PgBoss", "PgBossSchema", "StartFlow"]
