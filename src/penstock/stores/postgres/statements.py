"""SQL statements by name, in the schema of the store, and the numbers of job states."""

from __future__ import annotations

import re
from importlib import resources

from ...core.errors import SettingError
from ..sql_files import Queries

HELD, WAITING, DELAYED, ACTIVE, SUSPENDED, COMPLETED, FAILED, CANCELLED = range(-1, 7)

_ADMIN = Queries(__package__, "admin.sql")
_SCHEMA = re.compile(r"[a-z_][a-z0-9_]{0,50}")


class Statements:
    """The statements of admin.sql as attributes. The files are written for the schema `penstock`."""

    def __init__(self, schema: str) -> None:
        if not _SCHEMA.fullmatch(schema) or schema.startswith("pg_"):
            raise SettingError(
                f"invalid schema name {schema!r}; use lower-case letters, digits and '_', at most 51 characters"
            )
        self.schema = schema
        self.__dict__.update({name: self.in_schema(text) for name, text in vars(_ADMIN).items()})

    def in_schema(self, text: str) -> str:
        """Return SQL with the schema's name filled in, quoted: it may be a keyword such as `user`."""
        return re.sub(r"\bpenstock\.", f'"{self.schema}".', text)

    def __getattr__(self, name: str) -> str:
        raise AttributeError(f"no statement named {name}")


def migrations() -> list[tuple[int, str]]:
    """Return the numbered files in their order."""
    return [(int(name[:4]), text) for name, text in _read_folder("migrations")]


def functions() -> list[str]:
    """Return the files that create the functions."""
    return [text for _, text in _read_folder("functions")]


def _read_folder(folder: str) -> list[tuple[str, str]]:
    files = resources.files(__package__).joinpath(folder)
    names = sorted(file.name for file in files.iterdir() if file.name.endswith(".sql"))
    return [(name, files.joinpath(name).read_text("utf-8")) for name in names]
