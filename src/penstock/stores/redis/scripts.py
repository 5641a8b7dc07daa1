"""Composes our scripts from BullMQ's files and ours.

BullMQ's files come from the installed `bullmq` package and become local functions that our files call. A file that
differs from the tested one is refused by name.

A commit has one full path, which calls BullMQ's scripts, and one fast path (`lua/fast`) for jobs without special
settings. The fast path declines before its first write, and the full path then starts over.
"""

from __future__ import annotations

import hashlib
import re
from functools import cache
from importlib import metadata, resources

from ...core.errors import ConfigError

TESTED_VERSION = "3.4.4"
# The files we use, with the start of their SHA-256 in that version.
FILES = {
    "addJobScheduler-11": "2c3c3856f30da873",
    "addDelayedJob-6": "33d07c0c376c760f",
    "addParentJob-6": "8b6bc95ce60c2302",
    "addPrioritizedJob-9": "5c72b69e53d0687d",
    "addStandardJob-9": "6f61f23b5d27ad6e",
    "moveStalledJobsToWait-9": "dad86d89b50d825f",
    "moveToActive-11": "7d35069db0b831af",
    "moveToFinished-14": "8e744ec5d65dbe9e",
    "pause-7": "da797a84855a762e",
    "removeJob-2": "f2acb16fda20ccac",
    "removeJobScheduler-3": "98c40c2f329d9bad",
    "updateJobScheduler-12": "8c71d358aa62ffb7",
}
INNER_FUNCTIONS = {"storeJobScheduler": "addJobScheduler-11"}  # functions inside a file that we call by themselves


class Function:
    """Parts inside a Lua function: what they define is created when it is called."""

    def __init__(self, name: str, *parts: Part, returns: str = "") -> None:
        self.name = name
        self.parts = parts
        self.returns = returns


Part = str | Function
# Each script is a list of levels; a level is a function inside the one before it. Lua creates all functions of a script
# for each call, and creates them faster if the names they use are in an outer level.
PRELUDE = ("prelude", "write_buffer")
FULL_PATH = Function(
    "load_full_path",
    "fast/bullmq",
    "careful",
    "addDelayedJob-6",
    "addParentJob-6",
    "addPrioritizedJob-9",
    "addStandardJob-9",
    "moveToActive-11",
    "moveToFinished-14",
    "moveStalledJobsToWait-9",
    "removeJob-2",
    "job_states",
    "order_keys",
    "delete_job",
    "children",
    "end_attempt",
    Function(
        "commit_full",
        "removeJobScheduler-3",
        "storeJobScheduler",
        "job_schedulers",
        "add_job",
        "read_units",
        "check_unit",
        "write_schedules",
        "write_unit",
        "commit_full",
    ),
    Function("claim_full", "recover_jobs", "claim_full"),
    returns="commit_full, claim_full",
)
FAST_STEPS = Function("load_fast_steps", "fast/bullmq", "fast/steps")
PARTS: dict[str, tuple[tuple[Part, ...], ...]] = {
    "commit": (
        PRELUDE,
        ("queue_cache", "events"),
        (FAST_STEPS, "fast/finish", "claim_args", "fast/claim", FULL_PATH, "commit"),
    ),
    "renew": (PRELUDE, ("careful", "job_states", "renew")),
    "read": (
        PRELUDE,
        (
            "read_keys",
            "job_states",
            "read_jobs",
            "read_runs",
            "read_events",
            "job_schedulers",
            "read_state",
            "read_monitoring",
            "run_read",
        ),
    ),
    "admin": (
        PRELUDE,
        (
            "careful",
            "removeJob-2",
            "pause-7",
            "updateJobScheduler-12",
            "removeJobScheduler-3",
            "job_states",
            "job_schedulers",
            "order_keys",
            "delete_job",
            "children",
        ),
        ("housekeeping", "admin", "monitoring", "run_verb"),
    ),
}

_COMMENT = re.compile(r"--\[\[.*?(?:\]\]|\Z)", re.DOTALL)
_DEFINES = re.compile(r"local function \w+|local \w+ = function|\w+ = function|local remove\w+\s*$")
_FORWARD = re.compile(r"local \w+\s*$")


class Script:
    """The text of a script and its SHA-1, by which Redis finds it."""

    def __init__(self, name: str, text: str) -> None:
        self.name = name
        self.text = text
        self.sha = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()


@cache
def scripts() -> dict[str, Script]:
    """Return all scripts by name."""
    return {name: Script(name, _compose(levels)) for name, levels in PARTS.items()}


def _compose(levels: tuple[tuple[Part, ...], ...]) -> str:
    texts = ["\n".join(map(_text, level)) for level in levels]
    return "\nreturn (function()\n".join(texts) + "\nend)()" * (len(levels) - 1)


def _text(part: Part) -> str:
    if isinstance(part, Function):
        body = "\n".join(map(_text, part.parts)) + (f"\nreturn {part.returns}" if part.returns else "")
        return f"local function {part.name}(...)\n{body}\nend"
    if part in INNER_FUNCTIONS:
        return _extract(part, _bullmq_file(INNER_FUNCTIONS[part]))
    if part in FILES:
        return _wrap(f"bull_{part.partition('-')[0]}", _bullmq_file(part))
    return resources.files(__package__).joinpath("lua", f"{part}.lua").read_text("utf-8")


def _wrap(name: str, text: str) -> str:
    """Return a script of BullMQ's as a function. Its inner functions use only their parameters, so they are created
    once, at the first call."""
    definitions, is_inside = ["local rcall = call"], False
    main: list[str] = []
    for line in _COMMENT.sub("", text).replace("local rcall = redis.call", "local rcall = call").split("\n"):
        is_start = not is_inside and _DEFINES.match(line) is not None
        (definitions if is_inside or is_start else main).append(line)
        if is_inside or is_start:
            is_inside = line.rstrip() != "end" and not _FORWARD.match(line)
    body = "\n".join([*definitions, "return function(KEYS, ARGV)", *main, "end"])
    return (
        f"local function make_{name}()\n{body}\nend\nlocal made_{name}\n"
        f"local function {name}(KEYS, ARGV)\nmade_{name} = made_{name} or make_{name}()\n"
        f"return made_{name}(KEYS, ARGV)\nend"
    )


def _extract(name: str, text: str) -> str:
    """Return one function of a script of BullMQ's, created at its first call."""
    found = re.search(rf"^local function {name}\b.*?^end$", text, re.DOTALL | re.MULTILINE)
    assert found is not None, f"bullmq has no function {name}"
    return f"local function bull_{name}(...)\nlocal rcall = call\n{found[0]}\nreturn {name}(...)\nend"


def _bullmq_file(file: str) -> str:
    try:
        text = resources.files("bullmq").joinpath("commands", f"{file}.lua").read_text("utf-8")
    except (ModuleNotFoundError, FileNotFoundError):
        raise ConfigError(
            f"the Redis store requires {file}.lua of the package bullmq {TESTED_VERSION}; run `pip install "
            "'penstock[redis]'`"
        ) from None
    if hashlib.sha256(text.encode()).hexdigest()[:16] != FILES[file]:
        raise ConfigError(
            f"{file}.lua of bullmq {metadata.version('bullmq')} differs from the tested version ({TESTED_VERSION}); "
            f"run `pip install bullmq=={TESTED_VERSION}`"
        )
    return text
