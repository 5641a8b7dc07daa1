"""The tracer of the setting `opentelemetry`. Its packages are imported only when it is on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..core.errors import ConfigError

if TYPE_CHECKING:
    from ..telemetry.opentelemetry import OpenTelemetry


def make_tracer() -> OpenTelemetry:
    """Return a tracer with the providers of the application. Raise ConfigError if the extra is not installed."""
    try:
        from ..telemetry.opentelemetry import OpenTelemetry
    except ImportError as problem:
        raise ConfigError(
            f"the setting opentelemetry=on needs the extra `otel`: pip install 'penstock[otel]' ({problem})"
        ) from None
    return OpenTelemetry()
