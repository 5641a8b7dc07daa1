"""Consume from and produce to the queues of pg-boss, a job queue for Node on Postgres."""

from ...core.errors import PgBossSchema
from ..targets import AddJob, EmitEvent, EmitToEntity, StartFlow
from .bridge import PgBoss

__all__ = ["AddJob", "EmitEvent", "EmitToEntity", "PgBoss", "PgBossSchema", "StartFlow"]
