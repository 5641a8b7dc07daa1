"""Consume from and produce to the queues of BullMQ, on a Redis that need not be the store."""

from ..targets import AddJob, EmitEvent, EmitToEntity, StartFlow
from .bridge import BullMQ

__all__ = ["AddJob", "BullMQ", "EmitEvent", "EmitToEntity", "StartFlow"]
