"""Load SQL statements from .sql files, in which each has a line `-- name: word` above it."""

from __future__ import annotations

from pkgutil import get_data  # importlib.resources takes longer to import than a small command may


def read_sql(package: str, file: str) -> str:
    """Return the text of a file of a package."""
    data = get_data(package, file)
    assert data is not None
    return data.decode()


class Queries:
    """The statements of one .sql file, as attributes."""

    def __init__(self, package: str, file: str) -> None:
        statements: dict[str, str] = {}
        name = ""
        for line in read_sql(package, file).splitlines():
            if line.startswith("-- name:"):
                name = line.removeprefix("-- name:").strip()
                statements[name] = ""
            elif name and not line.startswith("--"):
                statements[name] += line.rstrip() + "\n"
        # Plain attributes, because every commit reads some for each of its statements.
        self.__dict__.update({key: text.strip().rstrip(";") for key, text in statements.items()})

    def __getattr__(self, name: str) -> str:
        raise AttributeError(f"no statement named {name!r}")
