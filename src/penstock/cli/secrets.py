"""Hide secrets in what a command prints: the store keeps inputs, results and state in the clear."""

from __future__ import annotations

from typing import Annotated, Any

from cyclopts import Parameter

from ..core.redaction import Redactor
from ..settings import Settings
from .options import CommonOptions

Reveal = Annotated[bool, Parameter(negative="", show_default=False, help="Show values that 'redact' would hide.")]


class SecretFilter:
    """Hides the keys named by the setting `redact`; nothing with --reveal."""

    def __init__(self, common: CommonOptions, reveal: bool) -> None:
        settings = Settings.load({"url": common.url, "dir": common.dir})
        self._redactor = Redactor(() if reveal else settings.redact)

    def redact_fields(self, row: dict[str, Any], *keys: str) -> dict[str, Any]:
        """Return the row with secrets hidden in the values of these keys."""
        return {key: self._redactor.redact_value(value) if key in keys else value for key, value in row.items()}

    def redact_value(self, key: str, value: Any) -> Any:
        """Return the value of a key that may itself name a secret."""
        return self._redactor.redact_value({key: value})[key]
