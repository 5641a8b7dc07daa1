"""Lines that worker processes write for the test to read: one `write` to a file opened O_APPEND is whole or absent."""

from __future__ import annotations

import os


class Line:
    """A file of lines that many processes append to."""

    def __init__(self, path: str) -> None:
        self._fd = os.open(path, os.O_APPEND | os.O_CREAT | os.O_WRONLY, 0o600)

    def __call__(self, *words: object) -> None:
        os.write(self._fd, (" ".join(map(str, words)) + "\n").encode())
