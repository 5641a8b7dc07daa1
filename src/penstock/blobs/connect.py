"""Open the blob store of a URL."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from ..core.clock import Clock
from ..core.errors import ConfigError
from ..core.text import shorten
from ..ports.blobs import ObjectStore
from .memory import MemoryObjects

MAX_RETRIES, RETRY_TIMEOUT_S = 3, 30  # of one request
CLOUDS = ("s3", "s3a", "gs", "az", "azure", "abfs", "abfss", "adl")
EXAMPLES = (
    "file:.penstock/blobs, file:///srv/blobs, s3://bucket/path, gs://bucket/path, az://container/path?account_name=name"
)


def open_blobs(url: str, namespace: str, clock: Clock) -> ObjectStore:
    """Return the blob store of a URL. The objects of each namespace are in a folder of their own."""
    scheme, folder = url.partition(":")[0], namespace.strip("{}")
    if scheme == "memory":
        return MemoryObjects(clock)
    if scheme != "file" and scheme not in CLOUDS:
        raise ConfigError(f"blob_url has the unknown scheme {shorten(scheme)}; use one such as {EXAMPLES}")
    try:
        from .objects import Folder, Objects
    except ImportError as problem:
        raise ConfigError(f"blob_url needs the extra `blobs`: pip install 'penstock[blobs]' ({problem})") from None
    if scheme == "file":
        return Folder(_folder(url), folder)
    return Objects(_open_cloud(url), folder)


def _folder(url: str) -> Path:
    """Return the folder of `file:relative/path` or `file:///absolute/path`."""
    path = unquote(url.removeprefix("file:"))
    if path.startswith("//"):
        host, _, path = path[2:].partition("/")
        path = f"/{path}"
        if host not in ("", "localhost"):
            raise ConfigError(f"blob_url names the host {shorten(host)}; a folder of this machine is file:///path")
    if path.strip("/") in ("", ".", ".."):
        raise ConfigError(f"blob_url must name a folder of its own, such as file:.penstock/blobs, got {shorten(url)}")
    return Path(path)


def _open_cloud(url: str) -> Any:
    """Open a bucket. Options of obstore come from the query, credentials from the environment."""
    from obstore.store import from_url

    base, _, query = url.partition("?")
    options: dict[str, Any] = dict(parse_qsl(query))
    if secrets := [name for name in options if "secret" in name.lower() or "key" in name.lower()]:
        raise ConfigError(f"blob_url has the credential {secrets[0]!r}; set it in the environment of the process")
    is_plain = urlsplit(str(options.get("endpoint", ""))).scheme == "http"
    try:
        connect: Any = from_url  # it has an overload for each kind of store
        return connect(
            base,
            config=options or None,
            client_options={"allow_http": True} if is_plain else None,
            retry_config={"max_retries": MAX_RETRIES, "retry_timeout": timedelta(seconds=RETRY_TIMEOUT_S)},
        )
    except Exception as problem:
        reason = str(problem).splitlines()[0]
        raise ConfigError(f"blob_url cannot be used: {reason}; use one such as {EXAMPLES}") from None
