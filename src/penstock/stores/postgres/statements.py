"""The statements by name, in the schema they are for, and the numbers of the states they write."""

from __future__ import annotations

import re
from importlib import resources

from ...core.errors import SettingError
from ..sql_files import Queries

HELD, WAITING, DELAYED, ACTIVE, SUSPENDED, COMPLETED, FAILED, CANCELLED = range(-1, 7)

_ADMIN = Queries(__package__, "admin.sql")
_SCHEMA = re.compile(r"[a-z_][a-z0-9_]{0,50}")


class Statements:
    """What admin.sql holds, as attributes. The files are written for the schema `penstock`."""

    def __init__(self, schema: str) -> None:
        if not _SCHEMA.fullmatch(schema) or schema.startswith("pg_"):
            raise SettingError(
                f"{schema!r} cannot be used as schema: use small letters, digits and '_', at most 51 characters"
            )
        self.schema = schema
        self.__dict__.update({name: self.placed(text) for name, text in vars(_ADMIN).items()})

    def placed(self, text: str) -> str:
        """A text of SQL with the schema's name in place, in quotes: it may be a word of SQL's own, such as `user`."""
        return re.sub(r"\bpenstock\.", f'"{self.schema}".', text)

    def __getattr__(self, name: str) -> str:
        raise AttributeError(f"no statement named {name}")


def migrations() -> list[tuple[int, str]]:
    """The numbered files in their order."""
    folder = resources.files(__package__).joinpath("migrations")
    files = sorted(file.name for file in folder.iterdir() if file.name.endswith(".sql"))
    return [(int(name[:4]), folder.joinpath(name).read_text("utf-8")) for name in files]
