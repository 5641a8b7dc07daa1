"""Lines that processes write for the test: one `write` to a file opened with O_APPEND is complete or absent."""

from __future__ import annotations

import os


class LineLog:
    """A file to which many processes append lines."""

    def __init__(self, path: str) -> None:
        self._fd = os.open(path, os.O_APPEND | os.O_CREAT | os.O_WRONLY, 0o600)

    def append(self, *words: object) -> None:
        os.write(self._fd, (" ".join(map(str, words)) + "\n").encode())
