"""Consume from and produce to the queues of pg-boss, a job queue for Node on Postgres."""

from .bridge import PgBoss
from .job_actions import AddJob, EmitEvent, StartFlow
from .schema import PgBossSchema

__all__ = ["AddJob", "EmitEvent", "PgBoss", "PgBossSchema", "StartFlow"]
