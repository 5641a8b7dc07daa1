"""Checks of the configs of built-in nodes: what can only fail at run time is refused when a dag is defined.

A value with an expression is known only when it is rendered, so it is not checked here.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

from ..core.durations import is_number, to_ms
from ..core.errors import BadDuration
from ..core.near_match import did_you_mean
from ..core.text import shorten
from .definition import Dag, Node
from .expressions import Template
from .warnings import DagWarning

SCHEMES = ("http", "https")
Problems = Iterator[tuple[str, str]]  # field and what is wrong with it


def find_config_problems(node: Node, path: str) -> list[str]:
    """Return what is wrong with the config of a built-in node."""
    check, config = _CHECKS.get(node.type), {} if node.config is None else node.config
    if check is None or not isinstance(config, dict):
        return []
    return [f"{path}{'.' if field else ''}{field}: {what}" for field, what in check(config)]


def find_unknown_targets(dag: Dag, known: Collection[str]) -> list[DagWarning]:
    """Return a warning for each `workflowId` that is neither a flow nor a dag known here: other code may have it."""
    found = []
    for n, node in enumerate(dag.nodes):
        target = node.config.get("workflowId") if isinstance(node.config, dict) else None
        if node.type not in ("sub-workflow", "map") or not isinstance(target, str) or not _is_literal(target):
            continue
        if target != dag.id and target not in known:
            hint = did_you_mean(target, {*known, dag.id}) or "register it before a run needs it"
            text = f"no flow or dag named {shorten(target)} is known here; {hint}"
            found.append(DagWarning(f"nodes[{n}].config.workflowId", text))
    return found


def _check_wait(config: Mapping[str, Any]) -> Problems:
    if (config.get("event") is None) == (config.get("webhook") is None):
        yield "", "a wait node needs either event or webhook"
    yield from _check_duration(config, "timeout")


def _check_delay(config: Mapping[str, Any]) -> Problems:
    names = [name for name in ("duration", "durationSeconds", "durationMinutes") if config.get(name) is not None]
    if not names:
        yield "", "a delay node needs duration, durationSeconds or durationMinutes"
    elif len(names) > 1:
        yield "", f"a delay node takes one of {', '.join(names)}"
    for name, factor in (("duration", 0.001), ("durationSeconds", 1), ("durationMinutes", 60)):
        yield from _check_duration(config, name, factor)


def _check_map(config: Mapping[str, Any]) -> Problems:
    given = [name for name in ("workflowId", "executor") if config.get(name) is not None]
    if len(given) != 1:
        yield "", f"a map node needs either workflowId or executor{', not both' if given else ''}"


def _check_http(config: Mapping[str, Any]) -> Problems:
    url = config.get("url")
    if isinstance(url, str) and _is_literal(url):
        try:
            parts = urlsplit(url)
            is_valid = parts.scheme in SCHEMES and bool(parts.hostname)
        except ValueError:
            is_valid = False
        if not is_valid:
            yield "url", f"{shorten(url)} is not an http or https address such as https://example.com/path"
    yield from _check_duration(config, "timeout")
    breaker = config.get("breaker")
    if isinstance(breaker, dict):
        for _, what in _check_duration(breaker, "openFor"):
            yield "breaker.openFor", what


def _check_duration(config: Mapping[str, Any], name: str, factor: float = 1) -> Problems:
    value = config.get(name)
    if value is None or not _is_literal(value):
        return
    try:
        to_ms(value * factor if is_number(value) else value)
    except BadDuration as problem:
        yield name, str(problem)


def _is_literal(value: Any) -> bool:
    return not isinstance(value, str) or Template(value).is_constant


_CHECKS: Mapping[str, Callable[[Mapping[str, Any]], Problems]] = {
    "wait": _check_wait,
    "delay": _check_delay,
    "map": _check_map,
    "http": _check_http,
}
