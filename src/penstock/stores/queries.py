"""SQL lives in .sql files: a file of statements, each under a line `-- name: word`."""

from __future__ import annotations

from importlib import resources


class Queries:
    """The statements of one .sql file, as attributes by name."""

    def __init__(self, package: str, file: str) -> None:
        self._statements: dict[str, str] = {}
        name = ""
        for line in resources.files(package).joinpath(file).read_text("utf-8").splitlines():
            if line.startswith("-- name:"):
                name = line.removeprefix("-- name:").strip()
                self._statements[name] = ""
            elif name and not line.startswith("--"):
                self._statements[name] += line.rstrip() + "\n"
        self._statements = {key: text.strip().rstrip(";") for key, text in self._statements.items()}

    def __getattr__(self, name: str) -> str:
        try:
            return self._statements[name]
        except KeyError:
            raise AttributeError(f"no statement named {name}") from None
