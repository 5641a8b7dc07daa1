"""Flows: steps started by events. Decisions are pure; the engine carries them out."""
