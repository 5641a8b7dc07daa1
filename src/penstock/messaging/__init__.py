"""Bridges to the queues of other systems: BullMQ, Kafka and pg-boss."""

from .definition import read_messaging
from .targets import AddJob, EmitEvent, EmitToEntity, StartFlow

__all__ = ["AddJob", "EmitEvent", "EmitToEntity", "StartFlow", "read_messaging"]
