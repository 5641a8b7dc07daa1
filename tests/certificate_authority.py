"""A certificate authority for the tests of TLS."""

from __future__ import annotations

import os
import shutil
import ssl
import subprocess
from pathlib import Path

import pytest


class Authority:
    """A certificate authority and a certificate for this machine, made by openssl."""

    def __init__(self, folder: Path) -> None:
        if shutil.which("openssl") is None:
            if os.environ.get("CI"):
                pytest.fail("openssl, which makes the certificates, is not installed")
            pytest.skip("openssl, which makes the certificates, is not installed")
        self._folder = folder
        self.file = folder / "ca.pem"
        self._openssl("req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=ours -keyout ca.key -out ca.pem")
        self._openssl("req -newkey rsa:2048 -nodes -subj /CN=redis -keyout server.key -out server.csr")
        (folder / "names").write_text("subjectAltName=IP:127.0.0.1,DNS:localhost\n")
        self._openssl(
            "x509 -req -in server.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -extfile names -out server.pem"
        )

    def _openssl(self, words: str) -> None:
        subprocess.run(["openssl", *words.split()], cwd=self._folder, check=True, capture_output=True)

    def context(self) -> ssl.SSLContext:
        """Return the TLS context of the server."""
        found = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        found.load_cert_chain(self._folder / "server.pem", self._folder / "server.key")
        return found
