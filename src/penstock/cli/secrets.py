"""What a store keeps as it was given, shown with its secrets hidden: payloads, results, state."""

from __future__ import annotations

from typing import Annotated, Any

from cyclopts import Parameter

from ..core.redaction import Redactor
from ..settings import Settings
from .options import Common

Reveal = Annotated[bool, Parameter(negative="", show_default=False, help="Show what the setting 'redact' would hide.")]


class Veil:
    """Hides what the settings say; nothing if the caller asks to see it."""

    def __init__(self, common: Common, reveal: bool) -> None:
        settings = Settings.load({"url": common.url, "dir": common.dir})
        self._redactor = Redactor(() if reveal else settings.redact)

    def over(self, row: dict[str, Any], *keys: str) -> dict[str, Any]:
        """A row with the values of these keys fit to be shown."""
        return {key: self._redactor.redact_value(value) if key in keys else value for key, value in row.items()}

    def member(self, key: str, value: Any) -> Any:
        """The value of a key that may itself name a secret."""
        return self._redactor.redact_value({key: value})[key]
