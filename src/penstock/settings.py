"""Settings: arguments override environment (`PENSTOCK_*`), `penstock.toml`, `[tool.penstock]` and defaults.

An unknown name is an error with a suggestion. Every value records its source.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, TypedDict

from .core.durations import Duration, to_ms
from .core.errors import SettingError
from .core.ids import BadId, check_name, check_namespace
from .core.near_match import did_you_mean
from .core.text import any_of, check_text, shorten

Names = str | Sequence[str]
Retention = Duration | Literal["never", "off"]
DEFAULT_URL = "sqlite:///.penstock/penstock.db"
PREFIX = "PENSTOCK_"
DEFAULT = "default"
MAX_COUNT = 1_000_000_000
MAX_PORT = 65_535
MAX_URL_CHARS = 4_000
REDACT = ("password", "passwd", "pwd", "secret", "token", "authorization", "cookie", "api_key", "apikey")
# Not settings: the CLI reads PENSTOCK_DEBUG, the tests read PENSTOCK_FAULTS.
_OTHER_VARIABLES = {"PENSTOCK_FAULTS", "PENSTOCK_DEBUG"}


class SettingOptions(TypedDict, total=False):
    """Settings as arguments of App; None means not set."""

    namespace: str | None
    concurrency: int | None
    threads: int | None
    call_concurrency: int | None
    lease: Duration | None
    grace: Duration | None
    max_crashes: int | None
    max_depth: int | None
    queue_names: Literal["filename", "directory"] | None
    import_mode: Literal["file", "module"] | None
    unknown_fields: Literal["refuse", "ignore"] | None
    node: str | None
    node_memory: int | None
    typescript: Literal["on", "off"] | None
    node_threads: int | None
    cpu_shares: int | None
    queues: Names | None
    stream_types: Names | None
    http_allow: Names | None
    public_url: str | None
    blob_url: str | None
    blob_signed_urls: Literal["on", "off"] | None
    blob_threshold: int | None
    blob_grace: Duration | None
    host: str | None
    port: int | None
    heartbeat: Duration | None
    buffer_limit: int | None
    allowed_origins: Names | None
    namespaces: Names | None
    token: str | None
    retain_runs: Retention | None
    retain_jobs: Retention | None
    retain_events: Retention | None
    retain_entity_events: Retention | None
    keep_runs: int | Literal["all"] | None
    keep_jobs: int | Literal["all"] | None
    keep_events: int | Literal["all"] | None
    keep_entity_events: int | Literal["all"] | None
    state_events: Literal["on", "off"] | None
    log: Literal["debug", "info", "warning", "error"] | None
    log_format: Literal["pretty", "json"] | None
    redact: Names | None
    process_pool: int | None
    process_jobs: int | None
    process_memory: int | None
    process_grace: Duration | None
    process_timeout: Duration | None
    process_cpu: int | None
    process_files: int | None
    process_python: str | None
    process_env: Names | None
    process_env_allow: Names | None
    opentelemetry: Literal["on", "off"] | None
    alerts: Names | None
    alert_interval: Duration | None
    alert_webhook: str | None


@dataclass(frozen=True)
class Settings:
    """All settings. Durations are milliseconds here, and are written as "30s"."""

    url: str = field(default=DEFAULT_URL, repr=False)  # it may contain a password
    dir: str = "workers"
    namespace: str = "nq"
    concurrency: int = 10
    threads: int = 10
    call_concurrency: int = 32
    lease: int = 30_000
    grace: int = 10_000
    max_crashes: int = 3
    max_depth: int = 10
    queue_names: Literal["filename", "directory"] = "filename"
    import_mode: Literal["file", "module"] = "file"
    unknown_fields: Literal["refuse", "ignore"] = "refuse"
    node: str = ""
    node_memory: int = 0
    typescript: Literal["on", "off"] = "on"
    node_threads: int = 0
    cpu_shares: int = 1024
    queues: tuple[str, ...] = ()
    stream_types: tuple[str, ...] = ()
    http_allow: tuple[str, ...] = ()
    public_url: str = ""
    blob_url: str = ""
    blob_signed_urls: Literal["on", "off"] = "on"
    blob_threshold: int = 32 * 1024
    blob_grace: int = 3_600_000
    host: str = "127.0.0.1"
    port: int = 8765
    heartbeat: int = 15_000
    buffer_limit: int = 128_000
    allowed_origins: tuple[str, ...] = ()
    namespaces: tuple[str, ...] = ()
    token: str = field(default="", repr=False)  # a secret
    retain_runs: int | None = 30 * 86_400_000
    retain_jobs: int | None = 7 * 86_400_000
    retain_events: int | None = 7 * 86_400_000
    retain_entity_events: int | None = None
    keep_runs: int | None = None
    keep_jobs: int | None = None
    keep_events: int | None = None
    keep_entity_events: int | None = None
    state_events: Literal["on", "off"] = "on"
    log: Literal["debug", "info", "warning", "error"] = "warning"
    log_format: Literal["pretty", "json"] = "pretty"
    redact: tuple[str, ...] = REDACT
    process_pool: int = 0
    process_jobs: int = 1000
    process_memory: int = 0
    process_grace: int = 2000
    process_timeout: int = 0
    process_cpu: int = 0
    process_files: int = 0
    process_python: str = ""
    process_env: tuple[str, ...] = field(default=(), repr=False)  # it may contain secrets
    process_env_allow: tuple[str, ...] = ()
    opentelemetry: Literal["on", "off"] = "off"
    alerts: tuple[str, ...] = ()
    alert_interval: int = 60_000
    alert_webhook: str = field(default="", repr=False)  # its address is a secret
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
    return f"argument {name!r}"


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
            raise SettingError(f"unknown setting {name!r}, read from {where}; {hint}")
        try:
            return _convert(name, value)
        except (ValueError, TypeError, BadId) as problem:
            text = str(problem)
            raise SettingError(f"{where} {text}" if text.startswith("must ") else f"{where}: {text}") from None


@lru_cache(maxsize=4)
def _parse_toml(path: Path, _mtime_ns: int, _size: int) -> dict[str, Any]:
    return tomllib.loads(path.read_text("utf-8"))


def _toml(path: Path, *table: str) -> Mapping[str, Any]:
    try:
        stat = path.stat()
        found: Any = _parse_toml(path.absolute(), stat.st_mtime_ns, stat.st_size)
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


_DURATIONS = {
    *("lease", "grace", "heartbeat", "retain_runs", "retain_jobs", "retain_events", "retain_entity_events"),
    *("process_grace", "process_timeout", "alert_interval", "blob_grace"),
}
_MIN_DURATIONS_MS = {"lease": 500, "heartbeat": 100, "alert_interval": 1000}
_COUNTS = {
    "concurrency": 1,
    "threads": 1,
    "call_concurrency": 1,
    "max_crashes": 0,
    "max_depth": 0,
    "port": 0,
    "buffer_limit": 1000,
    "blob_threshold": 0,
    "cpu_shares": 2,
    **dict.fromkeys(("node_memory", "node_threads"), 0),
    **dict.fromkeys(("keep_runs", "keep_jobs", "keep_events", "keep_entity_events"), 0),
    **dict.fromkeys(("process_pool", "process_jobs", "process_memory", "process_cpu", "process_files"), 0),
}
_MAX_COUNTS = {"port": MAX_PORT, "cpu_shares": 1024}
_LISTS = {
    "queues",
    "http_allow",
    "stream_types",
    "allowed_origins",
    "namespaces",
    "redact",
    "process_env",
    "process_env_allow",
    "alerts",
}
_LISTED_NAMES = {"queues": "queue name", "stream_types": "type of streams", "namespaces": "namespace"}
_CHOICES = {
    "queue_names": ("filename", "directory"),
    "import_mode": ("file", "module"),
    "unknown_fields": ("refuse", "ignore"),
    "state_events": ("on", "off"),
    "typescript": ("on", "off"),
    "blob_signed_urls": ("on", "off"),
    "opentelemetry": ("on", "off"),
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
                f'must be a list of strings or a comma-separated string such as "a,b", got {shorten(value)}'
            )
        words = [check_text(part, name).strip() for part in parts]
        bad = next((word for word in words if name == "process_env" and word and "=" not in word), None)
        if bad is not None:
            raise ValueError(f'must be a list of variables such as "MODE=fast", got {shorten(bad)}')
        label = _LISTED_NAMES.get(name)
        return tuple(check_name(word, label) if label is not None else word for word in words if word)
    if name == "namespace":
        return check_namespace(value)
    if name in _CHOICES and (not isinstance(value, str) or value not in _CHOICES[name]):
        raise ValueError(f"must be {any_of(_CHOICES[name])}, got {shorten(value)}")
    return check_text(value, name, MAX_URL_CHARS)


def _count(name: str, value: Any) -> int:
    """Convert a value from a file or a variable to a whole number."""
    count: object = value
    if isinstance(value, str) and value.strip().isdecimal():
        # Python reads no number of more than 4300 digits.
        count = int(value) if len(value) < 100 else MAX_COUNT + 1
    if isinstance(count, bool) or not isinstance(count, int) or count < _COUNTS[name]:
        raise ValueError(f"must be a whole number of at least {_COUNTS[name]}, got {shorten(value)}")
    most = _MAX_COUNTS.get(name, MAX_COUNT)
    if count > most:
        shown = most if name in _MAX_COUNTS else f"{most:,}"
        raise ValueError(f"must be at most {shown}, got {shorten(value)}")
    return count


def _duration(name: str, value: Any) -> int | None:
    if isinstance(value, str) and value in ("never", "off"):
        if not name.startswith("retain_"):
            raise ValueError("cannot be switched off; use a duration such as 30s")
        return None
    ms = to_ms(value)
    if name in _MIN_DURATIONS_MS and ms < _MIN_DURATIONS_MS[name]:
        raise ValueError(f"must be at least {_MIN_DURATIONS_MS[name]}ms, got {ms}ms")
    return ms
