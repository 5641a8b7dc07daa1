"""`penstock --help` is fast: it does not load the engine."""

from __future__ import annotations

import subprocess
import sys

import penstock

SLOW = ("asyncio", "apsw", "msgspec", "penstock.app", "penstock.flows", "rich.live")


def python(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout


def test_help_does_not_load_the_engine() -> None:
    code = f"""
import sys
from penstock.cli import main
assert main(["--help"]) == 0
print("loaded", [name for name in {SLOW!r} if name in sys.modules])
"""
    assert python(code).splitlines()[-1] == "loaded []"


def test_a_star_import_has_every_public_name() -> None:
    found: dict[str, object] = {}
    exec("from penstock import *", found)
    assert set(penstock.__all__) <= set(found)
