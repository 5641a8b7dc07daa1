"""Definitions of dags in files: JSON, or YAML with the extra `yaml`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..core.errors import ConfigError, DagInvalid
from ..core.text import shorten
from .definition import MAX_DEFINITION_BYTES, Dag, read_dag

YAML = (".yaml", ".yml")


def read_dag_file(path: Path) -> Dag:
    """Read a definition from a file. Raise DagInvalid with every mistake, ConfigError if it cannot be read."""
    try:
        text = path.read_bytes()
    except OSError as problem:
        raise ConfigError(f"cannot read {path}: {problem.strerror}") from None
    if len(text) > MAX_DEFINITION_BYTES:
        raise DagInvalid([f"{path}: a definition has at most {MAX_DEFINITION_BYTES} bytes, got {len(text)}"])
    return read_dag(_parse_yaml(text, path) if path.suffix in YAML else text)


def _parse_yaml(text: bytes, path: Path) -> Any:
    try:
        import yaml  # an extra
    except ImportError:
        raise ConfigError(f"{path} is YAML, which needs PyYAML: pip install 'penstock[yaml]', or write JSON") from None
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as problem:
        raise DagInvalid([f"{path}: not valid YAML: {shorten(str(problem), 200)}"]) from None
    except RecursionError:
        raise DagInvalid([f"{path}: not valid YAML: nested too deeply"]) from None
