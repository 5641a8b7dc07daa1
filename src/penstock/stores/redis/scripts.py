"""Our scripts, put together at start from BullMQ's own and ours.

BullMQ's script bodies come from the installed `bullmq` package and become local functions; ours call them. The package
is the protocol: a file that differs from the one tested is refused by name.
"""

from __future__ import annotations

import hashlib
import re
from functools import cache
from importlib import metadata, resources

from ...core.errors import ConfigError

TESTED = "3.4.4"
# The files used and how they begin to hash, as they are in that version.
FILES = {
    "addDelayedJob-6": "33d07c0c376c760f",
    "addParentJob-6": "8b6bc95ce60c2302",
    "addPrioritizedJob-9": "5c72b69e53d0687d",
    "addStandardJob-9": "6f61f23b5d27ad6e",
    "moveStalledJobsToWait-9": "dad86d89b50d825f",
    "moveToActive-11": "7d35069db0b831af",
    "moveToFinished-14": "8e744ec5d65dbe9e",
    "pause-7": "da797a84855a762e",
    "removeJob-2": "f2acb16fda20ccac",
    "updateJobScheduler-12": "8c71d358aa62ffb7",
}


class Inner:
    """Parts that are a function of that name: what they define is made when it is called."""

    def __init__(self, name: str, *parts: Part) -> None:
        self.name = name
        self.parts = parts


Part = str | Inner
# Each script in levels of BullMQ's files and ours. A level is a function inside the one before it. All functions are
# made anew for every call of a script: what they use of an outer level is at hand then, each name of their own level
# has to be looked for.
FIRST = ("base", "together")
LONG = Inner(
    "go_long",
    "addDelayedJob-6",
    "addParentJob-6",
    "addPrioritizedJob-9",
    "addStandardJob-9",
    "moveToActive-11",
    "moveToFinished-14",
    "moveStalledJobsToWait-9",
    "removeJob-2",
    "usual",
    "queue",
    "kin",
    "finish",
    Inner("commit_long", "add", "units", "checks", "writes", "commit"),
    Inner("claim_long", "claim"),
    "long",
)
STEPS = Inner("go_steps", "usual", "plain_steps")
PARTS: dict[str, tuple[tuple[Part, ...], ...]] = {
    "turn": (FIRST, ("queues", "append"), (STEPS, "plain_ends", "plain_claims", LONG, "turn")),
    "renew": (FIRST, ("removeJob-2", "queue", "renew")),
    "reads": (FIRST, ("removeJob-2", "queue", "read_jobs", "read_runs", "read_events", "reads")),
    "admin": (FIRST, ("removeJob-2", "pause-7", "updateJobScheduler-12", "queue", "kin", "admin")),
}


_COMMENT = re.compile(r"--\[\[.*?\]\]", re.DOTALL)
_DEFINES = re.compile(r"local function \w+|local \w+ = function|\w+ = function|local remove\w+\s*$")
_FORWARD = re.compile(r"local \w+\s*$")


class Script:
    """A script's text and the name Redis knows it by."""

    def __init__(self, name: str, text: str) -> None:
        self.name = name
        self.text = text
        self.sha = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()


@cache
def scripts() -> dict[str, Script]:
    """Every script by name; the same for every store of the process."""
    return {name: Script(name, _compose(levels)) for name, levels in PARTS.items()}


def _compose(levels: tuple[tuple[Part, ...], ...]) -> str:
    texts = ["\n".join(map(_text, level)) for level in levels]
    return "\nreturn (function()\n".join(texts) + "\nend)()" * (len(levels) - 1)


def _text(part: Part) -> str:
    if isinstance(part, Inner):
        return f"local function {part.name}(...)\n" + "\n".join(map(_text, part.parts)) + "\nend"
    if part in FILES:
        return _wrap(f"bull_{part.partition('-')[0]}", _theirs(part))
    return resources.files(__package__).joinpath("lua", f"{part}.lua").read_text("utf-8")


def _wrap(name: str, text: str) -> str:
    """A script as a function. The functions it defines use nothing but what they are given: they are made once for all
    calls, and not before the first."""
    defined, inside = ["local rcall = redis.call"], False
    main: list[str] = []
    for line in _COMMENT.sub("", text).split("\n"):
        begins = not inside and _DEFINES.match(line) is not None
        (defined if inside or begins else main).append(line)
        if inside or begins:
            inside = line.rstrip() != "end" and not _FORWARD.match(line)
    makes = "\n".join([*defined, "return function(KEYS, ARGV)", *main, "end"])
    return (
        f"local function make_{name}()\n{makes}\nend\nlocal made_{name}\n"
        f"local function {name}(KEYS, ARGV)\nmade_{name} = made_{name} or make_{name}()\n"
        f"return made_{name}(KEYS, ARGV)\nend"
    )


def _theirs(file: str) -> str:
    try:
        text = resources.files("bullmq").joinpath("commands", f"{file}.lua").read_text("utf-8")
    except (ModuleNotFoundError, FileNotFoundError):
        raise ConfigError(
            f"the Redis store needs the package bullmq {TESTED} and its {file}.lua: pip install 'penstock[redis]'"
        ) from None
    if hashlib.sha256(text.encode()).hexdigest()[:16] != FILES[file]:
        raise ConfigError(
            f"{file}.lua of bullmq {metadata.version('bullmq')} is not the one this version was tested with "
            f"({TESTED}): pip install bullmq=={TESTED}"
        )
    return text
