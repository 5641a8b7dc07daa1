"""Bridges to the queues of other systems: BullMQ, Kafka and pg-boss."""

from .definition import read_messaging
from .targets import AddJob, EmitEvent, StartFlow

__all__ = ["AddJob", "EmitEvent", "StartFlow", "read_messaging"]
