"""Pages that follow the code: the command line's help, and the methods of App."""

from __future__ import annotations

import importlib.util
import inspect
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from penstock import App, SyncApp
from penstock.app.dead_letters import DeadLetters
from penstock.app.events import Events
from penstock.app.queues import Queues
from penstock.app.state import AppState

DOCS = Path(__file__).parents[2] / "docs"


def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate_cli", DOCS / "generate_cli.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_command_lines_page_is_that_of_the_code() -> None:
    written = (DOCS / "reference" / "cli.md").read_text("utf-8")
    assert written == generator().build_page(), "run: python docs/generate_cli.py"


def public(kind: type[Any]) -> set[str]:
    return {name for name, _ in inspect.getmembers(kind, inspect.isroutine) if not name.startswith("_")}


PARTS = {
    "app": public(App) - {"open_claim"},  # called by the worker
    "app.events": public(Events) - {"close"},  # the App does it
    "app.queues": public(Queues),
    "app.dead_letters": public(DeadLetters),
    "app.state": public(AppState),
    "sync_app": public(SyncApp),
}


@pytest.mark.parametrize("part", PARTS)
def test_every_method_of_the_app(part: str) -> None:
    text = (DOCS / "reference" / "app.md").read_text("utf-8")
    documented = set(re.findall(rf"^\| `{re.escape(part)}\.(\w+)\(", text, flags=re.M))
    assert documented == PARTS[part]
