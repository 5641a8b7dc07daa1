"""A real export of several runs, and files made of it that somebody edited, cut or mixed up."""

from __future__ import annotations

import copy
import gzip
import json
from collections.abc import Callable, Iterator
from typing import Any

from penstock import flow, step
from penstock.core.errors import Permanent

Line = dict[str, Any]
Mutants = Iterator[tuple[str, bytes]]

DONE, FAILED, EVENT, TRIGGER, TIME, PINNED, PAUSED, CHILD = (
    "done", "failed", "event", "trigger", "time", "pinned", "paused", "child",
)  # fmt: skip


@flow("shop", emits=["ordered"])
async def order(input: Any, ctx: Any) -> None:
    await ctx.state.set("order", {"id": input})
    ctx.log("ordered")
    ctx.emit("ordered", {"id": input})
    if input == "parent":
        ctx.start("waits", "time", key=CHILD)


@step(on="ordered")
async def charge(ordered: Any, ctx: Any) -> Any:
    charged = await ctx.run("charge", lambda: 7)
    if ordered["id"] == "bad":
        raise Permanent("no money")
    return charged


@flow("waits")
async def waits(input: Any, ctx: Any) -> Any:
    await ctx.run("first", lambda: 1)
    await ctx.state.set("waits", input)
    match input:
        case "event":
            return (await ctx.wait.event("paid", match={"order": 7})).data
        case "trigger":
            return await (await ctx.wait.trigger("approval")).wait()
    await ctx.wait.time("10d")
    return None


@flow("pinned", version="1", on_change="continue", emits=["go"])
async def pinned(_input: Any, ctx: Any) -> None:
    ctx.emit("go", 1)
    await ctx.wait.time("10d")


@step(on="go")
async def end(number: int) -> int:
    return number


HANDLERS = (order, charge, waits, pinned, end)


async def export_runs(a: Any) -> list[Line]:
    """Run some flows on an App and return their exports."""
    async with a.workers.background():
        await a.start("shop", "parent", key=DONE)
        await a.start("shop", "bad", key=FAILED)
        for key in (EVENT, TRIGGER, TIME):
            await a.start("waits", key, key=key)
        await a.start("pinned", key=PINNED)
        await a.start("waits", "time", key=PAUSED)
        await a.wait_for_end(DONE)
        await a.wait_for_end(FAILED)
        for key in (EVENT, TRIGGER, TIME, PAUSED, CHILD):
            await a.wait_for_step(key, "waits", "suspended", "delayed")
        await a.wait_for_step(PINNED, "pinned", "suspended", "delayed")
        await a.wait_for_step(PINNED, "end", "completed")
    await a.runs.pause(PAUSED)
    keys = (DONE, FAILED, EVENT, TRIGGER, TIME, PINNED, PAUSED, CHILD)
    return [json.loads(await a.runs.export(key)) for key in keys]


def to_file(lines: list[Any]) -> bytes:
    return b"\n".join(json.dumps(line, separators=(",", ":")).encode() for line in lines) + b"\n"


def build_mutants(lines: list[Line]) -> Mutants:
    """Yield a name and a file for each mutant; the same ones for the same runs."""
    yield from _whole_files(to_file(lines), lines)
    for index, line in enumerate(lines):
        for name, change in _changes(line, lines):
            edited = copy.deepcopy(line)
            if change(edited) is not False:
                yield f"{line['run']}: {name}", to_file([*lines[:index], edited, *lines[index + 1 :]])
    yield from _raw_texts(lines)


def _whole_files(data: bytes, lines: list[Line]) -> Mutants:
    for n in range(1, 20):
        yield f"cut at {n}/20", data[: len(data) * n // 20]
    for n, junk in enumerate((b"\x00", b"\xff", b"\xc3(", b"\xed\xa0\x80", b"}", b'"', b"\\", b"\x1b[2J", b"[" * 5000)):
        at = data.rfind(b'{"', 0, len(data) * (n + 1) // 11) + 1  # inside a text, some of it would be valid JSON
        yield f"junk {junk[:4]!r} inside", data[:at] + junk + data[at:]
        yield f"junk {junk[:4]!r} as a line", data + junk + b"\n"
    for text in (b"null", b"7", b"[]", b"{}", b'"x"', b'{"penstock":3}', b'{"penstock":9,"new":1}', b"[" * 100_000):
        yield f"{text[:14]!r} as a line", data + text + b"\n"
    yield "nothing", b""
    yield "blank lines", b"\n\n" + data.replace(b"\n", b"\n \n")
    yield "CRLF", data.replace(b"\n", b"\r\n")
    yield "a byte order mark", b"\xef\xbb\xbf" + data
    yield "UTF-16", data.decode().encode("utf-16")
    yield "gzip", gzip.compress(data, mtime=0)
    yield "one line", data.replace(b"\n", b"")
    yield "a list", json.dumps(lines).encode()
    yield "indented", json.dumps(lines[0], indent=1).encode()
    yield "reversed", to_file(lines[::-1])
    for n, line in enumerate(lines):
        yield f"without {line['run']}", to_file(lines[:n] + lines[n + 1 :])
        yield f"{line['run']} twice", to_file([*lines, line])


VALUES: list[tuple[str, Any]] = [
    ("null", None), ("a number", 7), ("-1", -1), ("a huge number", 10**30), ("2^63", 2**63), ("a float", 1.5),
    ("true", True), ("empty text", ""), ("text", "nope x"), ("a path", "../../etc"), ("long text", "x" * 2000),
    ("NUL", "a\x00b"), ("a list", []), ("an object", {}), ("nested", [[{"a": [[]]}]]),
]  # fmt: skip

Change = Callable[[Line], Any]


def _changes(line: Line, lines: list[Line]) -> Iterator[tuple[str, Change]]:
    index = [one["run"] for one in lines].index(line["run"])
    if line["run"] in (DONE, FAILED, EVENT, TRIGGER, PINNED):  # the others are like these
        yield from _field_changes(line, index)
    for part in ("jobs", "waits", "events", "memos", "state", "ended"):
        if line[part]:
            yield f"no {part}", _set([part], type(line[part])())
        other = lines[(index + 1) % len(lines)]
        if other[part] != line[part]:
            yield f"{part} of {other['run']}", _set([part], other[part])
    yield from _event_changes(line)
    yield from _meanings(line)


def _field_changes(line: Line, index: int) -> Iterator[tuple[str, Change]]:
    places = [[key] for key in line]
    for part in ("jobs", "waits", "events", "ended"):
        places += [[part, 0, key] for key in (line[part][0] if line[part] else {})]
    places += [["events", -1, key] for key in line["events"][-1]]
    places += [["record", key] for key in line["record"]]
    places += [["jobs", 0, "opts", key] for key in (line["jobs"][0]["opts"] if line["jobs"] else {})]
    places += [["waits", 0, "body", key] for key in (line["waits"][0]["body"] if line["waits"] else {})]
    for n, place in enumerate(places):
        yield f"without {_name(place)}", _drop(place)
        # Each place with some of the values: together the runs and places meet them all.
        for k in range(3):
            what, value = VALUES[(n * 3 + index + k * 5) % len(VALUES)]
            yield f"{_name(place)} is {what}", _set(place, value)


def _event_changes(line: Line) -> Iterator[tuple[str, Change]]:
    last = len(line["events"]) - 1
    for n in sorted({0, last // 2, last}):
        yield f"without event {n}", lambda one, n=n: one["events"].pop(n)
        yield f"event {n} twice", lambda one, n=n: one["events"].insert(n, one["events"][n])
    yield "events reversed", lambda one: one["events"].reverse() if len(one["events"]) > 1 else False


def _meanings(line: Line) -> Iterator[tuple[str, Change]]:
    """Yield changes that keep every type."""
    run = line["run"]
    for key in (
        "shared/stock",
        "run/victim/x",
        "table/ffff",
        "",
        "x",
        "run/victim",
        f"run/{run}",
        f"run/{run}/",
        "run/",
    ):
        yield f"state of {key!r}", lambda one, key=key: one["state"].update({key: "evil"})
    for name in ("victim", f"{run}.2", "a b", "1234", "x" * 300, "é"):
        yield f"run is {name[:10]!r}", _set(["run"], name)
        yield f"memos of {name[:10]!r}", lambda one, name=name: one["memos"].update({f"{name}.order.1": {"a": 1}})
    for version in (0, 1, 4, "3", True):
        yield f"format {version!r}", _set(["penstock"], version)
    yield "another status", _set(["status"], "completed" if line["status"] != "completed" else "failed")
    yield "open or not", _set(["closed"], not line["closed"])
    yield "an unknown kind", _set(["kind"], "dag")
    yield "an unknown field", _set(["surprise"], 1)
    if line["record"].get("steps"):
        yield "more open steps", lambda one: next(iter(one["record"]["steps"].values())).__setitem__(0, 10**9)
    for done in ("order", " ", " order order ", " a b/c ", f" {'x' * 300} "):  # names of steps that ran once
        yield f"done is {done[:10]!r}", _set(["record", "done"], done)
    if line["jobs"]:
        for place, value in (
            ("id", "victim.order.1"), ("id", f"{run}.order.99"), ("queue", "penstock-events"), ("queue", "a:b"),
            ("queue", "../x"), ("run", "victim"), ("run", None), ("scope", "victim.order.1"), ("name", "other"),
            ("priority", 2**40), ("due", 2**62), ("payload", "x" * 10),
        ):  # fmt: skip
            yield f"job's {place} is {value!r:.24}", _set(["jobs", 0, place], value)
        yield "a job twice", lambda one: one["jobs"].append(one["jobs"][0])
        yield "a job of its own", lambda one: one["jobs"].append({**one["jobs"][0], "id": f"{run}.order.2"})
    if line["waits"]:
        for place, value in (
            ("id", "e-0"), ("job", "victim.order.1"), ("scope", "victim.order.1"), ("kind", "flow"), ("topic", "a b"),
        ):  # fmt: skip
            yield f"wait's {place} is {value!r}", _set(["waits", 0, place], value)
        yield "a wait twice", lambda one: one["waits"].append(one["waits"][0])


def _raw_texts(lines: list[Line]) -> Mutants:
    """Yield files with JSON that Python cannot write."""
    data = to_file(lines)
    for name, text in (
        ("deep", b"[" * 20_000 + b"]" * 20_000),
        ("1e400", b"1e400"),
        ("NaN", b"NaN"),
        ("1.5e3", b"1.5e3"),
    ):
        for key in (b'"payload":', b'"data":', b'"opts":', b'"record":', b'"created":', b'"state":{', b'"value":'):
            at = data.find(key)
            if at >= 0:
                start = at + len(key)
                yield f"{key.decode()} {name}", data[:start] + text + b"," + data[start:]
                yield f"{key.decode()} {name} in place", data[:start] + text + data[data.index(b",", start) :]


def _name(place: list[Any]) -> str:
    return ".".join(map(str, place))


def _set(place: list[Any], value: Any) -> Change:
    def change(line: Line) -> Any:
        target: Any = line
        for part in place[:-1]:
            target = target[part]
        if type(target[place[-1]]) is type(value) and target[place[-1]] == value if place[-1] in target else False:
            return False
        target[place[-1]] = value
        return None

    return change


def _drop(place: list[Any]) -> Change:
    def change(line: Line) -> None:
        target: Any = line
        for part in place[:-1]:
            target = target[part]
        del target[place[-1]]

    return change
