"""The web console: static files below `/console/`, for any place where the application is mounted.

A wheel contains the built files. In a checkout, `make console` builds them. Without them everything else works."""

from __future__ import annotations

import gzip
import mimetypes
from dataclasses import dataclass
from functools import lru_cache
from html import escape
from pathlib import Path

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from ..core.api_errors import MethodNotAllowed, NoRoute

PREFIX = "/console"
FILES = Path(__file__).with_name("console_files")
MIN_COMPRESSED_BYTES = 1_000
# Everything comes from this server, no script is inline, and no text becomes a script or HTML.
POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data:",
        "font-src 'self'",
        "connect-src 'self'",
        "manifest-src 'self'",
        "base-uri 'self'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types vue",
    )
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "permissions-policy": "camera=(), microphone=(), geolocation=()",
    "vary": "accept-encoding",
}
FOREVER = "public, max-age=31536000, immutable"  # the name of an asset contains a hash of its content


def has_console() -> bool:
    """Return whether this installation contains the console."""
    return (FILES / "index.html").is_file()


def describe_console(address: str) -> str:
    """Return the address of the console, or why there is none."""
    return f"{address}{PREFIX}/" if has_console() else "not in this installation; in a checkout, run `make console`"


def is_console_path(path: str) -> bool:
    """Return whether a path belongs to the console."""
    return path == PREFIX or path.startswith(f"{PREFIX}/")


def wants_console(request: Request, path: str) -> bool:
    """Return whether a browser opens the address of the server itself."""
    return path in ("", "/") and request.method == "GET" and "text/html" in request.headers.get("accept", "")


def serve_console(request: Request, path: str, root: str, namespace: str) -> Response:
    """Return a file of the console. Paths that are no file are pages of it: they have the same index.

    Args:
        request: The request.
        path: Its path below the place where the application is mounted.
        root: That place, such as `/ops`, with the namespace of a server of several.
        namespace: The namespace whose streams the console follows.
    """
    if request.method not in ("GET", "HEAD"):
        raise MethodNotAllowed(f"{request.method[:20]!r} is not possible here; this path has GET")
    if not has_console():
        raise NoRoute("this installation has no console; in a checkout, run `make console`")
    if not path.startswith(f"{PREFIX}/"):
        return RedirectResponse(f"{root}{PREFIX}/", 307)
    name = path.removeprefix(f"{PREFIX}/")
    if name.startswith("assets/") or name in _top_files(FILES.resolve()):
        return _serve_file(request, name)
    return _respond(request, _index(root, namespace), "text/html; charset=utf-8", "no-cache")


def _index(root: str, namespace: str) -> bytes:
    """Return the page: relative addresses in it start at the console's own place."""
    text = (FILES / "index.html").read_text("utf-8")
    base = f'<base href="{escape(root)}{PREFIX}/" /><meta name="penstock-namespace" content="{escape(namespace)}" />'
    return text.replace("<head>", f"<head>{base}", 1).encode()


def _serve_file(request: Request, name: str) -> Response:
    found = _read_file(FILES.resolve(), name)
    if found is None:
        raise NoRoute(f"the console has no file {name[:200]!r}")
    cache = FOREVER if name.startswith("assets/") else "no-cache"
    body, packed = found.body, found.packed
    return _respond(request, body, found.media, cache, packed)


@dataclass(frozen=True)
class _File:
    body: bytes
    packed: bytes
    media: str


@lru_cache(4)
def _top_files(folder: Path) -> frozenset[str]:
    return frozenset(file.name for file in folder.iterdir() if file.is_file() and file.name != "index.html")


@lru_cache(256)
def _read_file(folder: Path, name: str) -> _File | None:
    file = (folder / name).resolve()
    if not file.is_relative_to(folder) or not file.is_file():
        return None
    body = file.read_bytes()
    return _File(body, gzip.compress(body, mtime=0), mimetypes.guess_type(name)[0] or "application/octet-stream")


def _respond(request: Request, body: bytes, media: str, cache: str, packed: bytes | None = None) -> Response:
    headers = {**HEADERS, "cache-control": cache, "content-type": media}
    if len(body) >= MIN_COMPRESSED_BYTES and "gzip" in request.headers.get("accept-encoding", ""):
        headers["content-encoding"] = "gzip"
        body = packed if packed is not None else gzip.compress(body, 5, mtime=0)
    return Response(body if request.method == "GET" else b"", 200, headers)
