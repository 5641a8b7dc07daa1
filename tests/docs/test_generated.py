"""Pages that are generated from the code, and the docstrings they are generated from."""

from __future__ import annotations

import importlib.util
import inspect
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from penstock import App, Context, SyncApp
from penstock.app import sync, sync_facets
from penstock.context.context import Log
from penstock.context.state import StateView, SyncStateView
from penstock.context.sync_context import BranchCalls, SyncContext, SyncTrigger
from penstock.context.sync_context import SyncWaits as SyncContextWaits
from penstock.durable.trigger_waits import Trigger
from penstock.durable.waits import Waits
from penstock.testing import TestApp

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


def load_tool(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "tools" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


reference = load_tool("generate_reference")


def test_the_command_line_page_matches_the_help() -> None:
    written = (DOCS / "reference" / "cli.md").read_text("utf-8")
    assert written == load_tool("generate_cli").build_page(), "run: python tools/generate_cli.py"


def test_the_http_page_matches_the_openapi_document() -> None:
    written = (DOCS / "reference" / "http.md").read_text("utf-8")
    assert written == load_tool("generate_http").build_page(), "run: python tools/generate_http.py"


def test_the_operations_of_the_npm_package_match_the_openapi_document() -> None:
    tool = load_tool("generate_client")
    assert tool.FILE.read_text("utf-8") == tool.build_module(), "run: python tools/generate_client.py"


def test_the_tool_of_the_npm_package_only_compares_with_check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = load_tool("generate_client")
    monkeypatch.setattr(tool, "FILE", tmp_path / "operations.ts")
    tool.FILE.write_text("stale")
    monkeypatch.setattr("sys.argv", ["generate_client.py", "--check"])
    with pytest.raises(SystemExit, match=r"operations\.ts differs"):
        tool.main()
    assert tool.FILE.read_text() == "stale"


def test_the_api_page_matches_the_docstrings() -> None:
    written = (DOCS / "reference" / "app.md").read_text("utf-8")
    assert written == reference.build_page(), "run: python tools/generate_reference.py"


FACETS = [*reference.FACETS.values(), *(getattr(sync_facets, name) for name in dir(sync_facets) if name[:4] == "Sync")]
CONTEXTS = [
    Context,
    SyncContext,
    Log,
    StateView,
    SyncStateView,
    Waits,
    SyncContextWaits,
    Trigger,
    SyncTrigger,
    BranchCalls,
]
CLASSES = [App, SyncApp, TestApp, *FACETS, sync.SyncWorkers, sync.SyncOutbox, *CONTEXTS]


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_every_method_documents_every_parameter(cls: type[Any]) -> None:
    """An editor shows what each option means."""
    internal = reference.LEFT_OUT.get(cls, set()) | ({"open_claim"} if issubclass(cls, App) else set())
    methods = {name: method for name, method in reference.public_methods(cls) if name not in internal}
    undocumented = {name: undocumented_parameters(method) for name, method in methods.items()}
    assert {name: missing for name, missing in undocumented.items() if missing} == {}
    assert [name for name, method in methods.items() if not reference.read_docstring(method)[0]] == []


@pytest.mark.parametrize("decorator", reference.DECORATORS, ids=lambda decorator: decorator.__name__)
def test_every_decorator_documents_every_option(decorator: Any) -> None:
    assert undocumented_parameters(decorator) == []


@pytest.mark.parametrize("cls", [App, SyncApp, TestApp], ids=lambda cls: cls.__name__)
def test_every_app_documents_its_arguments(cls: type[Any]) -> None:
    _, documented = reference.read_docstring(cls)
    assert list(documented) == [name for name in inspect.signature(cls.__init__).parameters if name != "self"]


def test_a_missing_line_is_found() -> None:
    def documented(id: str, timeout: str | None = None) -> None:
        """Do something.

        Args:
            id: The id.
        """

    assert undocumented_parameters(documented) == ["timeout"]


def undocumented_parameters(method: Any) -> list[str]:
    _, documented = reference.read_docstring(method)
    parameters = inspect.signature(method).parameters.values()
    wanted = [p.name for p in parameters if p.name != "self" and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    return [name for name in wanted if name not in documented]
