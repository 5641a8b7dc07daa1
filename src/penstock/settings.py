"""Settings: arguments over environment (`PENSTOCK_*`) over defaults. Unknown names are errors with a suggestion."""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

from .core.durations import to_ms
from .core.errors import SettingError
from .core.ids import check_name

DEFAULT_URL = "sqlite:///.penstock/penstock.db"
PREFIX = "PENSTOCK_"
# Read by other parts: the log level by the CLI, the length of the fault suite by the tests.
_OTHERS = {"PENSTOCK_LOG", "PENSTOCK_FAULTS", "PENSTOCK_DEBUG"}


@dataclass(frozen=True)
class Settings:
    """Everything that can be set. Durations are milliseconds here; "30s" and the like where they are given."""

    url: str = DEFAULT_URL
    dir: str = "workers"
    namespace: str = "nq"
    concurrency: int = 10
    threads: int = 10
    lease: int = 30_000
    grace: int = 10_000
    max_crashes: int = 3
    queue_names: Literal["filename", "directory"] = "filename"
    queues: tuple[str, ...] = ()
    retain_runs: int | None = 30 * 86_400_000
    retain_jobs: int | None = 7 * 86_400_000
    retain_events: int | None = 7 * 86_400_000

    @classmethod
    def load(cls, given: Mapping[str, Any] | None = None, env: Mapping[str, str] | None = None) -> Settings:
        """Reads the environment, lets arguments (those not None) win, and checks every value."""
        environment = os.environ if env is None else env
        known = {field.name for field in fields(cls)}
        values: dict[str, Any] = {}
        for key, text in environment.items():
            if key.startswith(PREFIX) and key not in _OTHERS:
                name = key.removeprefix(PREFIX).lower()
                values[name] = _read(name, text, known, f"environment variable {key}")
        for name, value in (given or {}).items():
            if value is not None:
                values[name] = _read(name, value, known, f"argument {name}")
        return cls(**values)


_DURATIONS = {"lease", "grace", "retain_runs", "retain_jobs", "retain_events"}
_COUNTS = {"concurrency": 1, "threads": 1, "max_crashes": 0}


def _read(name: str, value: Any, known: set[str], where: str) -> Any:
    if name not in known:
        near = difflib.get_close_matches(name, sorted(known), 1)
        raise SettingError(
            f"{where}: there is no setting {name!r}; "
            + (f"did you mean {near[0]!r}?" if near else f"known are {', '.join(sorted(known))}")
        )
    try:
        return _convert(name, value)
    except (ValueError, TypeError) as problem:
        raise SettingError(f"{where}: {problem}") from None


def _convert(name: str, value: Any) -> Any:
    if name in _DURATIONS:
        if value in ("never", "off"):
            return _never(name)
        ms = to_ms(value)
        if name == "lease" and ms < 500:
            raise ValueError(f"a lease of {ms} ms is too short to renew: give at least 500ms")
        return ms
    if name in _COUNTS:
        number = int(value)
        if number < _COUNTS[name]:
            raise ValueError(f"{name}={value!r}: give a whole number of at least {_COUNTS[name]}")
        return number
    if name == "queues":
        parts = value.split(",") if isinstance(value, str) else value
        return tuple(check_name(part.strip(), "queue name") for part in parts if part.strip())
    if name == "namespace":
        return check_name(str(value), "namespace")
    if name == "queue_names" and value not in ("filename", "directory"):
        raise ValueError(f"queue_names={value!r}: write 'filename' or 'directory'")
    return str(value)


def _never(name: str) -> None:
    if not name.startswith("retain_"):
        raise ValueError(f"{name} cannot be switched off")
