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
from penstock.app.events import Events
from penstock.app.queues import DeadLetters, Queues
from penstock.app.state import AppState

DOCS = Path(__file__).parents[2] / "docs"


def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate_cli", DOCS / "generate_cli.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_cli_reference_is_up_to_date() -> None:
    written = (DOCS / "reference" / "cli.md").read_text("utf-8")
    assert written == generator().build_page(), "run: python docs/generate_cli.py"


SPEC = """dir tsExtensions pyExtensions queueNameFrom defaultQueueNameStrategy provider.name provider.options
logger.name logger.level logger.options state.name state.namespace state.options eventStore.name eventStore.options
streams.global streams.job streams.queue streams.flow maxDays maxEvents intervalEvents intervalMs typescript.enabled
isolate task.name handler spawn spawnCommand memoryMb cpuShares python.enabled python.cmd env importMode timeoutMs
maxRssMb envAllowlist transport heartbeatMs bufferLimit api.auth.requireRole api.auth.allowInDev ws.auth.requireRole
ws.auth.allowInDev namespaceFrom blob.provider basePath bucket signedUrl"""


def test_every_option_of_the_specification_has_a_line() -> None:
    text = (DOCS / "reference" / "from-the-spec.md").read_text("utf-8")
    cells = "".join(re.findall(r"^\| (.*?) \|", text, flags=re.M))
    assert [option for option in SPEC.split() if not re.search(rf"\b{re.escape(option)}\b", cells)] == []


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
