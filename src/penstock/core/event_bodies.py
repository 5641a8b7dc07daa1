"""Where events are made: the names of their streams, and the one place at which secrets are hidden."""

from __future__ import annotations

from typing import Any

from .events import Body, Streams, encode_body
from .redaction import Redactor


class EventBodies(Streams):
    """The streams of a namespace, and bodies fit to be written to them."""

    def __init__(self, namespace: str = "nq", redactor: Redactor | None = None) -> None:
        super().__init__(namespace)
        self._redactor = redactor or Redactor()

    def encode(self, body: Body) -> bytes:
        """The JSON of an event's body, its secrets hidden."""
        return self._redactor.json(encode_body(body))

    def text(self, text: str) -> str:
        """A message fit to be recorded."""
        return self._redactor.text(text)

    def value(self, value: Any) -> Any:
        """A JSON value fit to be recorded."""
        return self._redactor.value(value)
