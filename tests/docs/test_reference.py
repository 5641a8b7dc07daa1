"""The reference pages name everything that exists, and nothing else."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

import pytest

import penstock
from penstock.cli.command_table import COMMANDS
from penstock.core.durations import to_ms
from penstock.core.errors import PenstockError
from penstock.core.events import RESERVED_PREFIXES, STREAM_TYPES
from penstock.flows import reducer
from penstock.settings import Settings, list_names

ROOT = Path(__file__).parents[2]
SOURCES = ROOT / "src" / "penstock"


def page(name: str) -> str:
    return (ROOT / "docs" / name).read_text("utf-8")


def errors() -> dict[str, str]:
    """Return every class of the error tree and its code."""
    for module in pkgutil.walk_packages(penstock.__path__, "penstock."):
        if not module.name.startswith("penstock.testing") and not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    found: dict[str, str] = {}
    todo = [PenstockError]
    while todo:
        kind = todo.pop()
        if kind.__module__.startswith("penstock.") and not kind.__module__.startswith("penstock.testing"):
            found[kind.__name__] = kind.code
        todo += kind.__subclasses__()
    return found


def test_every_error_and_its_code() -> None:
    documented = dict(re.findall(r"^\| `(\w+)` \| `(\w+)` \|", page("errors.md"), flags=re.M))
    assert {name: code for code, name in documented.items()} == errors()


def test_every_error_can_be_imported_from_one_place() -> None:
    from penstock import errors as roof

    commands_own = {"ChecksFailed", "UsageError"}
    assert set(errors()) - commands_own == set(roof.__all__)


def test_every_error_has_its_http_status() -> None:
    from penstock import errors as roof
    from penstock.http.statuses import status_of

    table = page("errors.md").partition("## HTTP statuses")[2].partition("\n## ")[0]
    written = {
        (code, int(status))
        for status, codes in re.findall(r"^\| (\d+) \| .*? \| (.*) \|$", table, flags=re.M)
        for code in re.findall(r"`(\w+)`", codes)
    }
    kinds = [getattr(roof, name) for name in roof.__all__]
    assert written == {(kind.code, status_of(kind.__new__(kind))) for kind in kinds}


def test_codes_are_unique() -> None:
    codes = list(errors().values())
    assert sorted(codes) == sorted(set(codes))


def test_every_problem_of_a_worker_file() -> None:
    text = "".join(
        (SOURCES / "handlers" / name).read_text("utf-8")
        for name in ("discovery.py", "registry.py", "script_contract.py")
    )
    codes = set(re.findall(r'Problem\(\s*"(\w+)"', text)) | set(re.findall(r'code="(\w+)"', text)) | {"bad_definition"}
    codes |= {"duplicate_flow", "duplicate_step", "duplicate_job"}  # put together from a word
    table = page("errors.md").partition("## Problems with worker files")[2]
    assert set(re.findall(r"`(\w+)`", "".join(re.findall(r"^\| (`.*?) \|", table, flags=re.M)))) == codes


WRITTEN = re.compile(
    r'"((?:flow|step|call|job|schema|buffer|schedule|trigger|webhook|state|node)\.[a-z]+(?:\.[a-z]+)?)"'
)


def written_kinds() -> set[str]:
    """Return the kinds that the engine writes, without those that only reducers and readers use."""
    kinds = {f"{family}.{word}" for family in ("step", "job", "node") for word in ("progress", "partial")} | {"log"}
    for path in [
        *(SOURCES / "flows").glob("*.py"),
        *(SOURCES / "dags").glob("*.py"),
        *(SOURCES / "jobs").glob("*.py"),
        SOURCES / "app" / "schedules.py",
        SOURCES / "app" / "schedule_service.py",
        *(SOURCES / "durable").glob("*.py"),
        *(SOURCES / "worker").glob("*.py"),
        SOURCES / "context" / "state_events.py",
    ]:
        if path.name != "reducer.py":
            kinds |= set(WRITTEN.findall(path.read_text("utf-8")))
    for path in (SOURCES / "entities").glob("*.py"):
        kinds |= {f"entity.{word}" for word in re.findall(r'Emitted\("([a-z]+)"', path.read_text("utf-8"))}
    return kinds | {"entity.started"}


@pytest.mark.spec("000-19.4", "001-1.16")
def test_every_kind_of_event() -> None:
    text = page("events.md").partition("## Run events")[2].partition("## Read and subscribe")[0]
    cells = "".join(re.findall(r"^\| (`.*?) \|", text, flags=re.M))
    documented = set(re.findall(r"`([a-z]+(?:\.[a-z]+)*)`", cells))
    assert documented == written_kinds()


def test_the_kinds_a_run_is_folded_from_are_documented() -> None:
    assert all(f"`{kind}`" in page("events.md") for kind in reducer._CHANGES if kind != "step.resumed")
    assert "`step.resumed`" in page("events.md")


@pytest.mark.spec("000-19.4")
def test_reserved_words_and_streams() -> None:
    assert all(f"`{word}`" in page("events.md") for word in RESERVED_PREFIXES)
    assert all(f"`nq:{type_}" in page("events.md") for type_ in STREAM_TYPES)


def test_every_setting_and_its_default() -> None:
    rows = re.findall(r"^\| `(\w+)` \| `(PENSTOCK_\w+)` \| (.*?) \|", page("settings.md"), flags=re.M)
    assert [(name, variable) for name, variable, _ in rows] == [
        (name, f"PENSTOCK_{name.upper()}") for name, _, _ in rows
    ]
    defaults = {field.name: field.default for field in fields(Settings) if field.name in list_names()}
    assert {name for name, _, _ in rows} == set(defaults)
    for name, _, shown in rows:
        if name not in ("queues", "log"):
            assert _same(shown, defaults[name]), name


def _same(shown: str, default: object) -> bool:
    words = re.findall(r"`([^`]+)`", shown)
    if isinstance(default, tuple):
        return tuple(words) == default
    if default is None:
        return words in (["all"], ["never"])
    if default == "":
        return shown == "not set"
    return words == [str(default)] or (isinstance(default, int) and to_ms(words[0]) == default)


def test_every_command() -> None:
    assert re.findall(r"^\| `penstock (\w+)", page("index.md"), flags=re.M) == list(COMMANDS)


def test_every_page_is_linked_from_the_index_and_in_the_navigation() -> None:
    pages = {str(one.relative_to(ROOT / "docs")) for one in (ROOT / "docs").rglob("*.md")} - {"index.md"}
    navigation = (ROOT / "mkdocs.yml").read_text("utf-8")
    assert {one for one in pages if f"{one}\n" not in navigation} == set()
    assert {one for one in pages if f"]({one})" not in page("index.md") and "decisions/" not in one} == set()


@pytest.mark.parametrize("decorator", [penstock.flow, penstock.step, penstock.job])
def test_every_option_of_a_handler(decorator: Callable[..., object]) -> None:
    options = set(inspect.signature(decorator).parameters)
    assert {name for name in options if f"`{name}`" not in page("handlers.md")} == set()


def test_every_field_of_a_declared_wait() -> None:
    table = page("howto/waits.md").partition("The fields of `Await`.")[2].partition("\n## ")[0]
    assert set(re.findall(r"^\| `(\w+)` \|", table, flags=re.M)) == set(inspect.signature(penstock.Await).parameters)


def test_the_guarantee_has_the_same_words_everywhere() -> None:
    words = "Steps run at least once and are recorded exactly once; a worker that lost its lease can record nothing."
    for name in ("README.md", "docs/handlers.md", "docs/explanation/guarantees.md"):
        assert words in " ".join((ROOT / name).read_text("utf-8").split())


def test_the_changelog_names_the_commands() -> None:
    text = (ROOT / "CHANGELOG.md").read_text("utf-8")
    assert all(f"penstock {command}" in " ".join(text.split()) for command in COMMANDS)
