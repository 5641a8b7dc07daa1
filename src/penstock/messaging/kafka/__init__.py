"""Consume from and produce to topics of Kafka."""

from ..targets import AddJob, EmitEvent, StartFlow
from .bridge import Kafka

__all__ = ["AddJob", "EmitEvent", "Kafka", "StartFlow"]
