"""Reads what TypeScript and JavaScript worker files define. Node starts only for files that changed."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from ... import __version__
from ...core.errors import ConfigError
from ...core.text import shorten
from ...ports.script_files import ScriptDescription, ScriptError
from .program import Node, find_node

HOST = Path(__file__).with_name("host") / "host.mjs"
NODE_FLAGS = ("--enable-source-maps", "--disable-warning=ExperimentalWarning")
DESCRIBE_TIMEOUT_S = 60


def describe_scripts(files: Sequence[Path], node: str, cache: Path) -> list[ScriptDescription]:
    """Describe worker files, from the cache where nothing changed. Raise NodeMissing if Node is needed and absent."""
    known = {file: _read_cached(file, cache) for file in files}
    missing = [file for file, found in known.items() if found is None]
    fresh = _describe(find_node(node), missing) if missing else {}
    for file, found in fresh.items():
        if found.error is None:
            _write_cached(found, cache / _cache_name(file))
    return [known[file] or fresh[file] for file in files]


def _describe(node: Node, files: Sequence[Path]) -> dict[Path, ScriptDescription]:
    """Let Node import the files and return what they export."""
    stripper = node.stripper if any(file.suffix in (".ts", ".mts") for file in files) else None
    options = json.dumps({"files": [str(file) for file in files], "stripper": stripper})
    with tempfile.TemporaryFile() as out:  # not stdout: a file may print while it is imported
        command = [node.path, *NODE_FLAGS, str(HOST), "describe", str(out.fileno()), options]
        try:
            done = subprocess.run(  # noqa: S603
                command,
                pass_fds=(out.fileno(),),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=DESCRIBE_TIMEOUT_S,
            )
        except subprocess.TimeoutExpired:
            names = ", ".join(file.name for file in files)
            raise ConfigError(
                f"Node imported {names} for longer than {DESCRIBE_TIMEOUT_S} s; a worker file must not wait for "
                "anything at its top level"
            ) from None
        out.seek(0)
        answer = out.read()
    if not answer:
        shown = done.stderr.decode(errors="replace").strip()
        raise ConfigError(
            f"Node could not read the worker files: {shorten(shown, 500) or 'it ended without an answer'}"
        )
    return {Path(item["file"]): _hashed(item) for item in json.loads(answer)}


def _hashed(item: dict[str, Any]) -> ScriptDescription:
    error = msgspec.convert(item["error"], ScriptError) if "error" in item else None
    rest = {key: value for key, value in item.items() if key not in ("error", "sources")}
    found = msgspec.convert(rest, ScriptDescription)
    return msgspec.structs.replace(found, sources=_hash_sources(item["sources"]), error=error)


def _hash_sources(files: Sequence[str]) -> dict[str, str]:
    """Return the hash of each file, and under the empty name that of all: the same wherever the project lies."""
    hashes = {file: _hash(file) for file in sorted(files)}
    return {**hashes, "": hashlib.sha256("".join(hashes.values()).encode()).hexdigest()[:16]}


def _hash(file: str) -> str:
    try:
        return hashlib.sha256(Path(file).read_bytes()).hexdigest()[:16]
    except OSError:
        return ""


def _cache_name(file: Path) -> str:
    name = hashlib.sha256(f"{__version__}\0{file}".encode()).hexdigest()[:16]
    return f"{file.stem}-{name}.json"


def _read_cached(file: Path, cache: Path) -> ScriptDescription | None:
    try:
        found = msgspec.json.decode((cache / _cache_name(file)).read_bytes(), type=ScriptDescription)
    except (OSError, msgspec.MsgspecError):
        return None
    return found if _is_current(found.sources) else None


def _is_current(sources: Mapping[str, str]) -> bool:
    return all(_hash(file) == known for file, known in sources.items() if file)


def _write_cached(found: ScriptDescription, place: Path) -> None:
    with suppress(OSError):  # a read-only folder: Node starts each time
        place.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=place.parent, delete=False) as draft:
            draft.write(msgspec.json.encode(found))
        os.replace(draft.name, place)
