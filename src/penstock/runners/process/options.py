"""How the children of a process runner are started, limited and stopped."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase

from ...settings import Settings
from ..cpu_shares import NORMAL_SHARES

# What a child gets of the worker's environment. The store's URL and other secrets are not in it.
ALLOWED = (
    *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "LC_*", "TZ", "TERM", "VIRTUAL_ENV"),
    *("PYTHON*", "LD_LIBRARY_PATH", "DYLD_*", "SSL_CERT_FILE", "SSL_CERT_DIR", "COVERAGE_PROCESS_*"),
)


@dataclass(frozen=True)
class ProcessOptions:
    """The settings `process_…`, and how the worker imports its files."""

    size: int = 0  # 0: one child for each CPU core
    jobs: int = 1000  # a child is replaced after so many; 0: never
    memory_mb: int = 0  # a child that uses more is replaced, or killed while it runs a handler; 0: no limit
    grace_s: float = 2.0  # between cancel, SIGTERM and SIGKILL
    timeout_s: float | None = None  # of handlers without one
    cpu_s: int = 0
    files: int = 0
    command: tuple[str, ...] = (sys.executable,)
    env: tuple[str, ...] = ()
    env_allow: tuple[str, ...] = ()
    dir: str = ""
    import_mode: str = "file"
    queue_names: str = "filename"
    unknown_fields: str = "refuse"
    lifts_limits: bool = False
    cpu_shares: int = NORMAL_SHARES

    @classmethod
    def read(cls, settings: Settings) -> ProcessOptions:
        """Read them from the settings of an App."""
        return cls(
            settings.process_pool,
            settings.process_jobs,
            settings.process_memory,
            settings.process_grace / 1000,
            settings.process_timeout / 1000 if settings.process_timeout else None,
            settings.process_cpu,
            settings.process_files,
            tuple(shlex.split(settings.process_python)) or (sys.executable,),
            settings.process_env,
            settings.process_env_allow,
            os.path.abspath(settings.dir),
            settings.import_mode,
            settings.queue_names,
            settings.unknown_fields,
            bool(settings.blob_url and settings.blob_threshold),
            settings.cpu_shares,
        )

    @property
    def children(self) -> int:
        """How many children run at most."""
        return self.size or os.cpu_count() or 1

    def make_environment(self, variables: Mapping[str, str], folder: str) -> dict[str, str]:
        """Return the environment of a child: what is allowed of `variables`, and what the settings add."""
        patterns = (*ALLOWED, *self.env_allow)
        allowed = {name: value for name, value in variables.items() if any(fnmatchcase(name, one) for one in patterns)}
        extra = dict(line.split("=", 1) for line in self.env)
        return {**allowed, **dict.fromkeys(("TMPDIR", "TEMP", "TMP"), folder), **extra}
