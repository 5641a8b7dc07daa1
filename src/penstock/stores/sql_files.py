"""SQL lives in .sql files: a file of statements, each under a line `-- name: word`."""

from __future__ import annotations

from importlib import resources


class Queries:
    """The statements of one .sql file, as attributes by name."""

    def __init__(self, package: str, file: str) -> None:
        statements: dict[str, str] = {}
        name = ""
        for line in resources.files(package).joinpath(file).read_text("utf-8").splitlines():
            if line.startswith("-- name:"):
                name = line.removeprefix("-- name:").strip()
                statements[name] = ""
            elif name and not line.startswith("--"):
                statements[name] += line.rstrip() + "\n"
        # Plain attributes: these are read for every statement of every commit.
        self.__dict__.update({key: text.strip().rstrip(";") for key, text in statements.items()})

    def __getattr__(self, name: str) -> str:
        raise AttributeError(f"no statement named {name}")
