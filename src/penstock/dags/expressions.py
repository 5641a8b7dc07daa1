"""Expressions in the config of a node: `{{ nodes.fetch.data.id }}`.

A small language of its own: paths into JSON values, comparisons, `and`, `or`, `not`, and filters. It reads JSON values
and nothing else: no function calls, no attributes of Python objects, no arithmetic.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec

from ..core.errors import ExpressionError
from ..core.near_match import did_you_mean
from ..core.text import pluralize, shorten

MAX_EXPRESSION_CHARS = 1000
MAX_NESTING = 20  # of parentheses: each level is several Python calls deep
ROOTS = ("input", "nodes", "run")
_TOKEN = re.compile(
    r"""\s*(?:(?P<number>-?\d+(?:\.\d+)?)|(?P<string>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')"""
    r"""|(?P<name>[A-Za-z_][A-Za-z0-9_-]*)|(?P<sign>==|!=|<=|>=|[<>.()\[\]|,]))"""
)
_COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {
    "==": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip
_WORDS = {"true": True, "false": False, "null": None}
Evaluate = Callable[[Mapping[str, Any]], Any]


def _split_holes(text: str) -> list[str]:
    """Split a text at its `{{ … }}`: plain text and expressions, in turns. A pattern would not take linear time."""
    pieces, end = [], 0
    while (start := text.find("{{", end)) >= 0 and (close := text.find("}}", start + 2)) >= 0:
        pieces += [text[end:start], text[start + 2 : close]]
        end = close + 2
    return [*pieces, text[end:]]


NODE_FIELDS = ("data", "skipped")


class Missing(Exception):
    """A path leads nowhere."""


class Expression:
    """One parsed expression."""

    def __init__(self, text: str) -> None:
        self.text = text.strip()
        if len(text) > MAX_EXPRESSION_CHARS:
            raise ExpressionError(f"an expression has at most {MAX_EXPRESSION_CHARS} characters, got {len(text)}")
        self.nodes: set[str] = set()  # whose data it reads
        self.reads_input = False
        self._tokens = list(_tokenize(self.text))
        self._at = 0
        self._depth = 0
        self._evaluate = self._or()
        if self._at < len(self._tokens):
            raise self._unexpected("an operator or the end")

    def evaluate(self, scope: Mapping[str, Any]) -> Any:
        """Return the value for `{"input": …, "nodes": …, "run": …}`. Raise ExpressionError if it has none."""
        try:
            return self._evaluate(scope)
        except Missing as problem:
            mark = " Use" if str(problem).endswith("?") else "; use"
            raise ExpressionError(
                f"{{{{ {self.text} }}}}: {problem}{mark} `| default(value)` if it may be missing"
            ) from None
        except TypeError as problem:
            raise ExpressionError(f"{{{{ {self.text} }}}}: {problem}") from None

    # Grammar: or > and > not > comparison > filters > value

    def _or(self) -> Evaluate:
        left = self._and()
        while self._take_word("or"):
            left = _either(left, self._and())
        return left

    def _and(self) -> Evaluate:
        left = self._not()
        while self._take_word("and"):
            left = _both(left, self._not())
        return left

    def _not(self) -> Evaluate:
        if self._take_word("not"):
            inner = self._not()
            return lambda scope: not inner(scope)
        return self._comparison()

    def _comparison(self) -> Evaluate:
        left = self._filters()
        kind, text = self._peek()
        if kind == "sign" and text in _COMPARISONS:
            self._at += 1
            return _compare(text, left, self._filters())
        return left

    def _filters(self) -> Evaluate:
        value = self._value()
        while self._take("|"):
            name = self._name("the name of a filter")
            if name == "default":
                value = _default(value, self._arguments()[0])
                continue
            if name not in FILTERS:
                hint = did_you_mean(name, [*FILTERS, "default"]) or f"filters: {', '.join([*FILTERS, 'default'])}"
                raise ExpressionError(f"{{{{ {self.text} }}}}: no filter {name!r}; {hint}")
            value = _filtered(name, value)
        return value

    def _arguments(self) -> list[Evaluate]:
        self._expect("(")
        found = [self._or()]
        self._expect(")")
        return found

    def _value(self) -> Evaluate:
        kind, text = self._peek()
        self._at += 1
        if kind == "number":
            return _constant(float(text) if "." in text else int(text))
        if kind == "string":
            return _constant(re.sub(r"\\(.)", r"\1", text[1:-1]))
        if kind == "sign" and text == "(":
            return self._group()
        if kind == "name" and text in _WORDS:
            return _constant(_WORDS[text])
        if kind == "name":
            return self._path(text)
        self._at -= 1
        raise self._unexpected("a value")

    def _group(self) -> Evaluate:
        self._depth += 1
        if self._depth > MAX_NESTING:
            raise ExpressionError(f"an expression has at most {MAX_NESTING} parentheses inside each other")
        inner = self._or()
        self._expect(")")
        self._depth -= 1
        return inner

    def _path(self, root: str) -> Evaluate:
        if root not in ROOTS:
            hint = did_you_mean(root, ROOTS) or f"a path starts with {', '.join(ROOTS)}"
            raise ExpressionError(f"{{{{ {self.text} }}}}: unknown name {root!r}; {hint}")
        parts: list[str | int] = [root]
        while True:
            if self._take("."):
                parts.append(self._name("a name after '.'"))
            elif self._take("["):
                parts.append(self._key())
                self._expect("]")
            else:
                break
        if root == "input":
            self.reads_input = True
        if root == "nodes":
            if len(parts) < 3 or not isinstance(parts[1], str) or parts[2] not in NODE_FIELDS:
                raise ExpressionError(
                    f"{{{{ {self.text} }}}}: the data of a node is `nodes.<id>.data`, and whether it was skipped "
                    "`nodes.<id>.skipped`"
                )
            self.nodes.add(parts[1])
        return _read_path(parts)

    def _key(self) -> str | int:
        kind, text = self._peek()
        self._at += 1
        if kind == "number" and "." not in text:
            return int(text)
        if kind == "string":
            return text[1:-1]
        self._at -= 1
        raise self._unexpected("an index or a quoted key")

    # Tokens

    def _peek(self) -> tuple[str, str]:
        return self._tokens[self._at] if self._at < len(self._tokens) else ("end", "")

    def _take(self, sign: str) -> bool:
        if self._peek() != ("sign", sign):
            return False
        self._at += 1
        return True

    def _take_word(self, word: str) -> bool:
        if self._peek() != ("name", word):
            return False
        self._at += 1
        return True

    def _expect(self, sign: str) -> None:
        if not self._take(sign):
            raise self._unexpected(repr(sign))

    def _name(self, what: str) -> str:
        kind, text = self._peek()
        if kind != "name":
            raise self._unexpected(what)
        self._at += 1
        return text

    def _unexpected(self, wanted: str) -> ExpressionError:
        kind, text = self._peek()
        seen = "it ends" if kind == "end" else f"got {text!r}"
        return ExpressionError(f"{{{{ {self.text} }}}}: expected {wanted}, but {seen}")


class Template:
    """A config value with the expressions in its strings, parsed once."""

    def __init__(self, value: Any) -> None:
        self.nodes: set[str] = set()
        self.reads_input = False
        self.is_constant = True
        self._render = self._compile(value)

    def render(self, scope: Mapping[str, Any]) -> Any:
        """Return the value with every expression replaced by what it evaluates to."""
        return self._render(scope)

    def _compile(self, value: Any) -> Evaluate:
        if isinstance(value, str) and "{{" in value:
            return self._text(value)
        if isinstance(value, dict):
            parts = {key: self._compile(item) for key, item in value.items()}
            return lambda scope: {key: render(scope) for key, render in parts.items()}
        if isinstance(value, list):
            items = [self._compile(item) for item in value]
            return lambda scope: [render(scope) for render in items]
        return _constant(value)

    def _text(self, text: str) -> Evaluate:
        pieces = _split_holes(text)
        if len(pieces) == 1:
            raise ExpressionError(f"{shorten(text)} has '{{{{' without '}}}}'")
        self.is_constant = False
        holes = [Expression(piece) for piece in pieces[1::2]]
        for hole in holes:
            self.nodes |= hole.nodes
            self.reads_input = self.reads_input or hole.reads_input
        if len(holes) == 1 and not pieces[0].strip() and not pieces[2].strip():
            return holes[0].evaluate  # the value itself, not its text
        plain = pieces[::2]

        def render(scope: Mapping[str, Any]) -> str:
            values = [_as_text(hole.evaluate(scope)) for hole in holes]
            return plain[0] + "".join(value + after for value, after in zip(values, plain[1:], strict=True))

        return render


def _tokenize(text: str) -> Iterator[tuple[str, str]]:
    at = 0
    while at < len(text):
        found = _TOKEN.match(text, at)
        if found is None or found.lastgroup is None:
            raise ExpressionError(f"{{{{ {text} }}}}: unexpected character {text[at:].lstrip()[:1]!r}")
        yield found.lastgroup, found[found.lastgroup]
        at = found.end()


def _constant(value: Any) -> Evaluate:
    return lambda _scope: value


def _either(left: Evaluate, right: Evaluate) -> Evaluate:
    return lambda scope: left(scope) or right(scope)


def _both(left: Evaluate, right: Evaluate) -> Evaluate:
    return lambda scope: left(scope) and right(scope)


def _compare(sign: str, left: Evaluate, right: Evaluate) -> Evaluate:
    compare = _COMPARISONS[sign]
    return lambda scope: compare(left(scope), right(scope))


def _default(value: Evaluate, other: Evaluate) -> Evaluate:
    def evaluate(scope: Mapping[str, Any]) -> Any:
        try:
            found = value(scope)
        except Missing:
            return other(scope)
        return other(scope) if found is None else found

    return evaluate


def _filtered(name: str, value: Evaluate) -> Evaluate:
    change, accepts, wanted = FILTERS[name]

    def evaluate(scope: Mapping[str, Any]) -> Any:
        found = value(scope)
        if not isinstance(found, accepts):
            raise TypeError(f"the filter {name!r} needs {wanted}, got {shorten(found)}")
        return change(found)

    return evaluate


def _read_path(parts: list[str | int]) -> Evaluate:
    def evaluate(scope: Mapping[str, Any]) -> Any:
        value: Any = scope
        for n, part in enumerate(parts):
            if isinstance(part, str):
                is_there = isinstance(value, Mapping) and part in value
            else:
                is_there = isinstance(value, list) and -len(value) <= part < len(value)
            if not is_there:
                raise Missing(_explain(parts[:n], part, value))
            value = value[part]
        return value

    return evaluate


def _explain(path: list[str | int], part: str | int, value: Any) -> str:
    shown = ".".join(map(str, path)) or "it"
    if isinstance(value, Mapping):
        hint = did_you_mean(part, [key for key in value if isinstance(key, str)])
        return f"{shown} has no {part!r}" + (f"; {hint}" if hint else "")
    if isinstance(value, list):
        return f"{shown} is a list of {pluralize(len(value), 'item')}; it has no item {part!r}"
    return f"{shown} is {shorten(value)}, which has no {part!r}"


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _first(value: list[Any] | str) -> Any:
    return value[0] if value else None


def _last(value: list[Any] | str) -> Any:
    return value[-1] if value else None


FILTERS: dict[str, tuple[Callable[[Any], Any], type | tuple[type, ...], str]] = {
    "length": (len, (str, list, dict), "a text, a list or an object"),
    "upper": (str.upper, str, "a text"),
    "lower": (str.lower, str, "a text"),
    "trim": (str.strip, str, "a text"),
    "first": (_first, (list, str), "a list or a text"),
    "last": (_last, (list, str), "a list or a text"),
    "keys": (list, dict, "an object"),
    "json": (_as_text, object, "a value"),
}
