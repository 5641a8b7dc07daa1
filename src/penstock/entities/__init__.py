"""Entities: things with a urn and a status, moved by a state machine. What a worker file imports, and their engine."""

from typing import TYPE_CHECKING

from ..core.lazy_names import lazy_names

if TYPE_CHECKING:
    from ..core.errors import Rejected
    from ..handlers.entities import entity, make_entity, on_event, on_status_changed
    from ..handlers.entity_machine import States, Transition
    from .services import EntityService, FunctionService
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "EntityService": ".services",
            "FunctionService": ".services",
            "Rejected": "..core.errors",
            "States": "..handlers.entity_machine",
            "Transition": "..handlers.entity_machine",
            "entity": "..handlers.entities",
            "make_entity": "..handlers.entities",
            "on_event": "..handlers.entities",
            "on_status_changed": "..handlers.entities",
        },
    )

__all__ = [
    "EntityService",
    "FunctionService",
    "Rejected",
    "States",
    "Transition",
    "entity",
    "make_entity",
    "on_event",
    "on_status_changed",
]
