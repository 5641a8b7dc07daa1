"""Consume from and produce to topics of Kafka."""

from ..targets import AddJob, EmitEvent, EmitToEntity, StartFlow
from .bridge import Kafka

__all__ = ["AddJob", "EmitEvent", "EmitToEntity", "Kafka", "StartFlow"]
