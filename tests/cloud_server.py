"""A server on this machine that answers as Google Cloud Storage and as Azure Blob Storage do, as far as a test needs it."""

from __future__ import annotations

import hashlib
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    objects: dict[str, bytes]

    def log_message(self, *_: Any) -> None:
        """Print nothing."""

    def _place(self) -> tuple[str, dict[str, list[str]]]:
        parts = urlsplit(self.path)
        return unquote(parts.path), parse_qs(parts.query, keep_blank_values=True)

    def _answer(self, status: int, body: bytes = b"", tagged: bytes | None = None) -> None:
        self.send_response(status)
        size = len(body) if self.command != "HEAD" else len(tagged or b"")
        self.send_header("Content-Length", str(size))
        if tagged is not None:
            self.send_header("ETag", f'"{hashlib.md5(tagged).hexdigest()}"')
            self.send_header("Last-Modified", formatdate(usegmt=True))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def do_PUT(self) -> None:
        path, _ = self._place()
        self.objects[path] = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self._answer(201, tagged=self.objects[path])

    def do_GET(self) -> None:
        path, query = self._place()
        if "list-type" in query or query.get("comp") == ["list"]:
            self._list(path.rstrip("/") + "/", query)
        elif path in self.objects:
            self._answer(200, self.objects[path], self.objects[path])
        else:
            self._answer(404)

    do_HEAD = do_GET  # noqa: N815

    def do_DELETE(self) -> None:
        path, _ = self._place()
        self._answer(404 if self.objects.pop(path, None) is None else 202)

    def do_POST(self) -> None:
        """Delete several blobs of Azure: one request in parts, one answer in parts."""
        body = self.rfile.read(int(self.headers.get("Content-Length", 0))).decode()
        account = self._place()[0].split("/")[1]
        parts = []
        for number, path in enumerate(re.findall(r"^DELETE (\S+) HTTP", body, re.MULTILINE)):
            gone = self.objects.pop(f"/{account}{unquote(path.removeprefix(f'/{account}'))}", None)
            status = "404 Not Found" if gone is None else "202 Accepted"
            head = f"Content-Type: application/http\r\nContent-ID: {number}\r\n\r\nHTTP/1.1 {status}"
            parts.append(f"--answer\r\n{head}\r\nx-ms-version: 2018-11-09\r\n\r\n")
        text = "".join([*parts, "--answer--\r\n"]).encode()
        self.send_response(202)
        self.send_header("Content-Type", "multipart/mixed; boundary=answer")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def _list(self, bucket: str, query: dict[str, list[str]]) -> None:
        prefix = query.get("prefix", [""])[0]
        names = sorted(path.removeprefix(bucket) for path in self.objects if path.startswith(bucket + prefix))
        is_azure = "comp" in query
        rows = "".join(map(_azure_row if is_azure else _google_row, names, (self.objects[bucket + n] for n in names)))
        text = (
            f"<EnumerationResults><Blobs>{rows}</Blobs><NextMarker/></EnumerationResults>"
            if is_azure
            else f"<ListBucketResult>{rows}<IsTruncated>false</IsTruncated></ListBucketResult>"
        )
        self._answer(200, f'<?xml version="1.0" encoding="utf-8"?>{text}'.encode())


def _azure_row(name: str, data: bytes) -> str:
    return (
        f"<Blob><Name>{escape(name)}</Name><Properties><Last-Modified>{formatdate(usegmt=True)}</Last-Modified>"
        f"<Etag>{hashlib.md5(data).hexdigest()}</Etag><Content-Length>{len(data)}</Content-Length>"
        "<Content-Type>text/plain</Content-Type></Properties></Blob>"
    )


def _google_row(name: str, data: bytes) -> str:
    return (
        f"<Contents><Key>{escape(name)}</Key><Size>{len(data)}</Size><LastModified>2026-01-01T00:00:00.000Z"
        f"</LastModified><ETag>{hashlib.md5(data).hexdigest()}</ETag></Contents>"
    )


@contextmanager
def run_cloud() -> Iterator[str]:
    """Run the server; yield its address."""
    handler = type("Handler", (_Handler,), {"objects": {}})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
