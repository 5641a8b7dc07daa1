"""Settings: arguments override environment (`PENSTOCK_*`), `penstock.toml`, `[tool.penstock]` and defaults.

An unknown name is an error with a suggestion. Every value records its source.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, TypedDict

from .core.durations import Duration, to_ms
from .core.errors import SettingError
from .core.ids import BadId, check_name, check_namespace
from .core.near_match import did_you_mean
from .core.text import check_text, shorten

Names = str | Sequence[str]
Retention = Duration | Literal["never", "off"]
DEFAULT_URL = "sqlite:///.penstock/penstock.db"
PREFIX = "PENSTOCK_"
DEFAULT = "default"
MAX_COUNT = 1_000_000_000
MAX_URL_CHARS = 4_000
# Not settings: the CLI reads PENSTOCK_DEBUG, the tests read PENSTOCK_FAULTS.
_OTHER_VARIABLES = {"PENSTOCK_FAULTS", "PENSTOCK_DEBUG"}


class SettingOptions(TypedDict, total=False):
    """Settings as arguments of App; None means not set."""

    namespace: str | None
    concurrency: int | None
    threads: int | None
    lease: Duration | None
    grace: Duration | None
    max_crashes: int | None
    queue_names: Literal["filename", "directory"] | None
    unknown_fields: Literal["refuse", "ignore"] | None
    queues: Names | None
    public_url: str | None
    retain_runs: Retention | None
    retain_jobs: Retention | None
    retain_events: Retention | None
    keep_runs: int | Literal["all"] | None
    keep_jobs: int | Literal["all"] | None
    keep_events: int | Literal["all"] | None
    log: Literal["debug", "info", "warning", "error"] | None
    log_format: Literal["pretty", "json"] | None
    redact: Names | None


@dataclass(frozen=True)
class Settings:
    """All settings. Durations are milliseconds here, and are written as "30s"."""

    url: str = field(default=DEFAULT_URL, repr=False)  # it may contain a password
    dir: str = "workers"
    namespace: str = "nq"
    concurrency: int = 10
    threads: int = 10
    lease: int = 30_000
    grace: int = 10_000
    max_crashes: int = 3
    queue_names: Literal["filename", "directory"] = "filename"
    unknown_fields: Literal["refuse", "ignore"] = "refuse"
    queues: tuple[str, ...] = ()
    public_url: str = ""
    retain_runs: int | None = 30 * 86_400_000
    retain_jobs: int | None = 7 * 86_400_000
    retain_events: int | None = 7 * 86_400_000
    keep_runs: int | None = None
    keep_jobs: int | None = None
    keep_events: int | None = None
    log: Literal["debug", "info", "warning", "error"] = "warning"
    log_format: Literal["pretty", "json"] = "pretty"
    redact: tuple[str, ...] = ("password", "passwd", "secret", "token", "authorization", "cookie", "api_key", "apikey")
    sources: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)

    @classmethod
    def load(
        cls,
        arguments: Mapping[str, Any] | None = None,
        env: Mapping[str, str] | None = None,
        folder: str | Path | None = None,
    ) -> Settings:
        """Read the files of a folder (by default the current one), the environment and the arguments."""
        reader = _Reader()
        base = Path(folder) if folder is not None else Path.cwd()
        reader.add(_toml(base / "pyproject.toml", "tool", "penstock"), lambda name: f"[tool.penstock] {name}")
        reader.add(_toml(base / "penstock.toml"), lambda name: f"penstock.toml {name}")
        environment = os.environ if env is None else env
        ours = [key for key in environment if key.startswith(PREFIX) and key not in _OTHER_VARIABLES]
        reader.add({key.removeprefix(PREFIX).lower(): environment[key] for key in ours}, _variable)
        reader.add({name: value for name, value in (arguments or {}).items() if value is not None}, _argument)
        values = reader.values
        if "url" in values:
            values["url"] = expand_url(values["url"], values.get("namespace", cls.namespace))
        return cls(**values, sources=MappingProxyType(reader.sources))

    def source(self, name: str) -> str:
        """Return the source of a value."""
        return self.sources.get(name, DEFAULT)


def expand_url(url: str, namespace: str) -> str:
    """Return a store URL with `{namespace}` replaced, so that one URL gives each namespace a store of its own."""
    return url.replace("{namespace}", namespace.strip("{}"))


def list_names() -> list[str]:
    """Return the names of all settings."""
    return [f.name for f in fields(Settings) if f.name != "sources"]


def _variable(name: str) -> str:
    return f"environment variable {PREFIX}{name.upper()}"


def _argument(name: str) -> str:
    return f"argument {name}"


class _Reader:
    """Collects values by name; later ones override earlier ones."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self.sources: dict[str, str] = {}
        self._known = set(list_names())

    def add(self, found: Mapping[str, Any], where: Any) -> None:
        for key, value in found.items():
            name = key.replace("-", "_")
            self.values[name] = self._read(name, value, where(name))
            self.sources[name] = where(name)

    def _read(self, name: str, value: Any, where: str) -> Any:
        if name not in self._known:
            hint = did_you_mean(name, self._known) or f"known settings: {', '.join(sorted(self._known))}"
            raise SettingError(f"{where}: unknown setting {name!r}; {hint}")
        try:
            return _convert(name, value)
        except (ValueError, TypeError, BadId) as problem:
            raise SettingError(f"{where}: {problem}") from None


def _toml(path: Path, *table: str) -> Mapping[str, Any]:
    try:
        found: Any = tomllib.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as problem:  # not UTF-8, not TOML, or a number of thousands of digits
        raise SettingError(f"cannot read {path.name}: {problem}") from None
    except RecursionError:
        raise SettingError(f"cannot read {path.name}: it is nested too deeply") from None
    for n, name in enumerate(table, 1):
        found = found.get(name, {})
        if not isinstance(found, dict):
            raise SettingError(f"{path.name}: [{'.'.join(table[:n])}] must be a table, got {shorten(found)}")
    return found  # type: ignore[no-any-return]


_DURATIONS = {"lease", "grace", "retain_runs", "retain_jobs", "retain_events"}
_COUNTS = {"concurrency": 1, "threads": 1, "max_crashes": 0, "keep_runs": 0, "keep_jobs": 0, "keep_events": 0}
_LISTS = {"queues", "redact"}
_CHOICES = {
    "queue_names": ("filename", "directory"),
    "unknown_fields": ("refuse", "ignore"),
    "log": ("debug", "info", "warning", "error"),
    "log_format": ("pretty", "json"),
}


def _convert(name: str, value: Any) -> Any:
    if name in _DURATIONS:
        return _duration(name, value)
    if name in _COUNTS:
        return None if name.startswith("keep_") and isinstance(value, str) and value == "all" else _count(name, value)
    if name in _LISTS:
        parts = value.split(",") if isinstance(value, str) else value
        if not isinstance(parts, Sequence) or not all(isinstance(part, str) for part in parts):
            raise ValueError(
                f'{name} must be a list of strings or a comma-separated string such as "a,b", got {shorten(value)}'
            )
        words = [check_text(part, name).strip() for part in parts]
        return tuple(check_name(word, "queue name") if name == "queues" else word for word in words if word)
    if name == "namespace":
        return check_namespace(value)
    if name in _CHOICES and (not isinstance(value, str) or value not in _CHOICES[name]):
        raise ValueError(f"{name} must be one of {', '.join(map(repr, _CHOICES[name]))}, got {shorten(value)}")
    return check_text(value, name, MAX_URL_CHARS)


def _count(name: str, value: Any) -> int:
    """Convert a value from a file or a variable to a whole number."""
    count: object = value
    if isinstance(value, str) and value.strip().isdecimal():
        # Python reads no number of more than 4300 digits.
        count = int(value) if len(value) < 100 else MAX_COUNT + 1
    if isinstance(count, bool) or not isinstance(count, int) or count < _COUNTS[name]:
        raise ValueError(f"{name} must be a whole number of at least {_COUNTS[name]}, got {shorten(value)}")
    if count > MAX_COUNT:
        raise ValueError(f"{name} must be at most {MAX_COUNT:,}, got {shorten(value)}")
    return count


def _duration(name: str, value: Any) -> int | None:
    if isinstance(value, str) and value in ("never", "off"):
        if not name.startswith("retain_"):
            raise ValueError(f"{name} cannot be switched off; use a duration such as 30s")
        return None
    ms = to_ms(value)
    if name == "lease" and ms < 500:
        raise ValueError(f"lease must be at least 500ms, got {ms}ms")
    return ms
