"""Options as people write them: converted to typed Structs, with one translator for the errors msgspec raises."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import timedelta
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec

from .durations import MAX_DURATION_MS, MAX_DURATION_TEXT, to_ms
from .errors import BadArgument, BadDuration, DefinitionError, PayloadError
from .near_match import did_you_mean
from .text import shorten

MAX_PRIORITY = 2_097_151
MAX_KEY_CHARS = 200
S = TypeVar("S", bound=msgspec.Struct)
DELAY_META = msgspec.Meta(
    ge=0,
    le=MAX_DURATION_MS,
    description=f"a non-negative number of milliseconds or a duration, at most {MAX_DURATION_TEXT}",
)
_WORDS = {int: "a whole number", float: "a number", bool: "True or False", str: "a string", Mapping: "a mapping"}
_STANDARD = re.compile(r"Expected|Invalid enum value|\w+( value)? out of range")
_MISSING = re.compile(r"Object missing required field `(\w+)`")


class Milliseconds(int):
    """The type of an option that takes a duration."""


class BadPriority(PayloadError):
    """A priority is not a whole number in the range every store supports."""

    code = "bad_priority"


def check_priority(value: Any) -> int:
    """Return a job's priority, lower first, or raise BadPriority with the range."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MAX_PRIORITY:
        raise BadPriority(f"priority must be a whole number from 0 (first) to {MAX_PRIORITY:,}, got {shorten(value)}")
    return value


def check_key(value: Any, name: str) -> str:
    """Return a key that groups jobs of a queue, or raise BadArgument with the option's name."""
    if isinstance(value, str) and 0 < len(value) <= MAX_KEY_CHARS and value.isprintable():
        return value
    raise BadArgument(f"{name} must be a string of 1 to {MAX_KEY_CHARS} printable characters, got {shorten(value)}")


def rename_keys(
    options: Any,
    known: set[str],
    what: str,
    *,
    aliases: Mapping[str, str] | None = None,
    where: str | None = None,
) -> dict[str, Any]:
    """Return options under their snake_case names; camelCase and aliases are accepted.

    Raises DefinitionError for an unknown key, with the nearest known one."""
    if not isinstance(options, Mapping):
        raise DefinitionError(
            f"{what} must be a mapping with keys such as {', '.join(sorted(known))}; got {shorten(options)}",
            where=where,
        )
    renamed: dict[str, Any] = {}
    for key, value in options.items():
        name = _to_snake_case(key) if isinstance(key, str) else shorten(key)
        name = (aliases or {}).get(name, name)
        if name not in known:
            spell = (
                _to_camel_case if isinstance(key, str) and name != key else str
            )  # as the others are written in TypeScript, or in Python
            names = {spell(one) for one in (*known, *(aliases or {}))}
            hint = did_you_mean(key, names) or f"known keys: {', '.join(sorted(map(spell, known)))}"
            raise DefinitionError(f"{what} has an unknown key {shorten(key)}; {hint}", where=where)
        renamed[name] = value
    return renamed


def read_options(type_: type[S], options: Any, what: str = "", *, where: str | None = None) -> S:
    """Convert a mapping to a Struct, or check the values of a Struct that was built by hand.

    The Struct may declare `aliases` of its fields. In a mapping, a field named `…_ms` also accepts "2s" or a timedelta.
    Raises DefinitionError with the option, its value and what to write instead."""
    fields = _prepare(type_, options, what, where)
    try:
        return msgspec.convert(fields, type_, dec_hook=_decode)
    except msgspec.ValidationError as problem:
        raise DefinitionError(_explain(problem, type_, fields, what), where=where) from None


def _prepare(type_: Any, options: Any, what: str, where: str | None) -> dict[str, Any]:
    infos = _fields_of(type_)
    is_struct = isinstance(options, type_)
    if is_struct:
        options = msgspec.structs.asdict(options)
    renamed = rename_keys(options, set(infos), what, aliases=getattr(type_, "aliases", None), where=where)
    prepared: dict[str, Any] = {}
    for name, value in renamed.items():
        nested, path = _struct_in(infos[name].type), f"{what}.{name}" if what else name
        if nested is not None and isinstance(value, Mapping | nested):
            value = _prepare(nested, value, path, where)
        elif not is_struct and name.endswith("_ms") and isinstance(value, str | timedelta):
            try:
                value = to_ms(value)
            except BadDuration as problem:
                raise DefinitionError(f"{path}: {problem}", where=where) from None
        prepared[infos[name].encode_name] = value
    return prepared


def _struct_in(hint: Any) -> Any:
    """Return the Struct of a type such as `Backoff` or `FlowConfig | None`, or None."""
    kinds = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    return next((kind for kind in kinds if isinstance(kind, type) and issubclass(kind, msgspec.Struct)), None)


@cache
def _fields_of(type_: Any) -> dict[str, msgspec.structs.FieldInfo]:
    return {field.name: field for field in msgspec.structs.fields(type_)}


def _decode(type_: Any, value: Any) -> Any:
    if type_ is Milliseconds:
        return Milliseconds(to_ms(value))
    raise NotImplementedError(f"no option has the type {type_!r}")


def _explain(problem: msgspec.ValidationError, type_: Any, options: Mapping[str, Any], what: str) -> str:
    """Name the option, its value and what to write instead."""
    text, _, path = str(problem).removesuffix("`").rpartition(" - at `$")
    if not text:
        text, path = path, ""
    name, value, hint = what, options, type_
    for part in re.findall(r"\w+", path.replace("...", "0")):
        if part.isdecimal():  # an item of a list: the whole list is shown
            break
        field = next(field for field in _fields_of(hint).values() if field.encode_name == part)
        hint = get_type_hints(hint, include_extras=True)[field.name]
        hint = _struct_in(hint) or hint
        name, value = f"{name}.{field.name}" if name else field.name, value[part]
    if missing := _MISSING.match(text):
        return f"{name} requires {missing[1]!r}, got {shorten(value, 200)}"
    if not _STANDARD.match(text):
        return f"{name}: {text}"
    return f"{name} must be {_describe(hint)}, got {shorten(value, 200)}"


def _describe(hint: Any) -> str:
    """Describe the values a type accepts."""
    if get_origin(hint) in (Union, UnionType):
        return " or ".join(_describe(one) for one in get_args(hint) if one is not NoneType)
    if get_origin(hint) is Annotated:
        inner, *metas = get_args(hint)
        meta = next((meta for meta in metas if isinstance(meta, msgspec.Meta)), msgspec.Meta())
        if meta.description is not None:
            return meta.description
        if meta.ge is None:
            return _describe(inner)
        limit = f"of at least {meta.ge:,}" if meta.le is None else f"from {meta.ge:,} to {meta.le:,}"
        return f"{_describe(inner)} {limit}"
    if get_origin(hint) is Literal:
        return " or ".join(map(repr, get_args(hint)))
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        return f"a mapping with keys such as {', '.join(_fields_of(hint))}"
    return _WORDS.get(hint, "another value")


def _to_camel_case(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)


def _to_snake_case(name: str) -> str:
    return re.sub("([A-Z])", r"_\1", name).lower()
