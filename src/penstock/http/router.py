"""The router: a tree of path segments. The cost of a request does not grow with the number of routes."""

from __future__ import annotations

import re
from collections.abc import Iterable

from ..core.api_errors import MethodNotAllowed, NoRoute
from ..core.near_match import did_you_mean
from ..core.text import escape_line
from .endpoints import Endpoint

_PARAMETER = re.compile(r"{(\w+)(?::(\w+))?}")

Parameters = dict[str, str]


class _Node:
    """One segment: what follows it by text, by parameter, or as the rest of the path."""

    __slots__ = ("fixed", "methods", "names", "parameter", "rest")

    def __init__(self) -> None:
        self.fixed: dict[str, _Node] = {}
        self.parameter: _Node | None = None
        self.rest: _Node | None = None
        self.methods: dict[str, Endpoint] = {}
        self.names: dict[str, tuple[str, ...]] = {}  # of the parameters, by method


class Router:
    """Finds the endpoint of a method and a path. Fixed segments win over parameters."""

    def __init__(self, endpoints: Iterable[Endpoint]) -> None:
        self._root = _Node()
        for endpoint in endpoints:
            self._add(endpoint)

    def find(self, method: str, path: str) -> tuple[Endpoint, Parameters]:
        """Return the endpoint and the parameters of the path. Raise NoRoute or MethodNotAllowed."""
        node, values = self._match(path)
        endpoint = node.methods.get("GET" if method == "HEAD" else method)
        if endpoint is None:
            allowed = sorted({*node.methods, *(("HEAD",) if "GET" in node.methods else ())})
            raise MethodNotAllowed(f"this path takes {', '.join(allowed)}, not {escape_line(method[:20])}", allowed)
        return endpoint, dict(zip(node.names[endpoint.method], values, strict=True))

    def methods(self, path: str) -> Iterable[str]:
        """Return the methods of a path. Raise NoRoute if there is no such path."""
        return self._match(path)[0].methods

    def _add(self, endpoint: Endpoint) -> None:
        self._place(endpoint, endpoint.path)
        if ":path}/" in endpoint.path:  # `nq:flow:r-1/tail`: the fixed segment wins over a second parameter
            self._place(endpoint, endpoint.path.replace(":path}/", "}/"))

    def _place(self, endpoint: Endpoint, path: str) -> None:
        node, names = self._root, []
        for segment in path.split("/"):
            if (found := _PARAMETER.fullmatch(segment)) is None:
                node = node.fixed.setdefault(segment, _Node())
                continue
            names.append(found[1])
            if found[2] == "path":
                node.rest = node = node.rest or _Node()
            else:
                node.parameter = node = node.parameter or _Node()
        assert endpoint.method not in node.methods, f"{endpoint.method} {path} is defined twice"
        node.methods[endpoint.method] = endpoint
        node.names[endpoint.method] = tuple(names)

    def _match(self, path: str) -> tuple[_Node, list[str]]:
        found = _descend(self._root, path.split("/"), 0)
        if found is None:
            hint = _suggest(self._root, path.split("/")) or "/api/openapi.json lists them"
            raise NoRoute(f"no path {path[:200]!r}; {hint}")
        return found


def _suggest(node: _Node, segments: list[str]) -> str:
    """Return a hint at the segment that was probably meant, where the path leaves the tree."""
    for segment in segments:
        following = node.fixed.get(segment) or node.parameter
        if following is None:
            return did_you_mean(segment, node.fixed)
        node = following
    return ""


def _descend(node: _Node, segments: list[str], at: int) -> tuple[_Node, list[str]] | None:
    if at == len(segments):
        return (node, []) if node.methods else None
    segment = segments[at]
    if (fixed := node.fixed.get(segment)) is not None and (found := _descend(fixed, segments, at + 1)) is not None:
        return found
    if node.parameter is not None and segment and (found := _descend(node.parameter, segments, at + 1)) is not None:
        found[1].insert(0, segment)
        return found
    return _descend_rest(node.rest, segments, at) if node.rest is not None else None


def _descend_rest(rest: _Node, segments: list[str], at: int) -> tuple[_Node, list[str]] | None:
    """Match a parameter of several segments, and the fixed ones that may follow it."""
    if rest.methods:
        return rest, ["/".join(segments[at:])]
    for name, node in rest.fixed.items():
        if len(segments) > at + 1 and segments[-1] == name:
            return node, ["/".join(segments[at:-1])]
    return None
