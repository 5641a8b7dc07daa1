"""Fixtures of the HTTP API."""

from __future__ import annotations

import pytest

from http_server import Serve, serve_app


@pytest.fixture
def serve() -> Serve:
    """Return a context manager that serves an open App and yields a client."""
    return serve_app
