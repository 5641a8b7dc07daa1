"""Offload: large values go to the blob store, and the store keeps references. Code above sees whole values."""

from __future__ import annotations

from .store import offload
from .sweep import ValueSweeper

__all__ = ["ValueSweeper", "offload"]
