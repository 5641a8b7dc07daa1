"""Encodes event bodies: the one place where secrets are redacted before an event is written."""

from __future__ import annotations

from typing import Any

from .events import EventBody, Streams, encode_body
from .redaction import Redactor


class EventBodies(Streams):
    """The streams of a namespace, and the encoder of event bodies."""

    def __init__(self, namespace: str = "nq", redactor: Redactor | None = None) -> None:
        super().__init__(namespace)
        self._redactor = redactor or Redactor()

    def encode(self, body: EventBody) -> bytes:
        """Encode an event's body as JSON, with secrets redacted."""
        return self._redactor.redact_json(encode_body(body))

    def redact_text(self, text: str) -> str:
        """Redact secrets in a text."""
        return self._redactor.redact_text(text)

    def redact_value(self, value: Any) -> Any:
        """Redact secrets in a JSON value."""
        return self._redactor.redact_value(value)
