"""Secrets are redacted in events, errors and log lines; handlers get the real values."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import logging
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import apsw
import asyncpg
import pytest
import redis.asyncio
from canaries import CANARIES, REDACT, Canary

import postgres_server
import redis_server
from penstock import App, Context, Event, Permanent, flow, step
from penstock.cli import main
from penstock.core.errors import RunFailed
from penstock.core.redaction import REDACTED, Redactor
from penstock.settings import Settings
from penstock.stores.postgres.address import read_address
from penstock.telemetry.logging import configure, restore_loggers
from penstock.testing.until import until

pytestmark = pytest.mark.xdist_group("canaries")  # one process makes the runs

OTHER_LOGGER = logging.getLogger("shop.own")
DELIVERED: list[Any] = []
INPUTS: list[Any] = []
STARTED: list[Any] = []
PAYLOADS = [canary.payload for canary in CANARIES]


@flow("leaky", emits=["secret.seen"])
async def leaky(payload: list[Any], ctx: Context) -> Any:
    INPUTS.append(payload)
    for canary in CANARIES:
        ctx.partial(canary.payload)
        ctx.progress(canary.payload)
        ctx.log("look", what=canary.payload)
        if canary.text is not None:
            ctx.log.warning(canary.text)
            OTHER_LOGGER.warning("by hand: %s", canary.text)
        await ctx.state.set("kept", canary.payload)
        ctx.emit("secret.seen", canary.payload)
    return payload


@step(on="secret.seen", mode="each", dead_letters=True, queue="deliver")
def deliver(payload: Any, ctx: Any) -> None:
    DELIVERED.append(payload)
    text = next((c.text for c in CANARIES if c.payload == payload), None)
    cause = ValueError(text)
    cause.code = text  # type: ignore[attr-defined]
    raise cause


@flow("honest", emits=["handed.on"])
async def honest(payload: Any, ctx: Context) -> None:
    ctx.emit("handed.on", payload)


@step(on="handed.on")
async def last(payload: Any) -> Any:
    return payload


@flow("catcher", emits=[])
async def catcher(n: int, ctx: Context) -> Any:
    return (await ctx.wait.event("secret.sent", match=PAYLOADS[n])).data


@flow("late", emits=[])
async def late(input: Any, ctx: Context) -> Any:
    await ctx.wait.event("go")
    return [(await ctx.wait.event("secret.sent", match=payload)).data for payload in PAYLOADS]


@flow("stuck", emits=[])
async def stuck(n: int, ctx: Context) -> Any:
    await ctx.wait.event("never.sent", match=PAYLOADS[n])


@flow("asked", emits=[])
async def asked(input: Any, ctx: Context) -> Any:
    return await (await ctx.wait.trigger("answer")).wait()


@flow("started", start_on="secret.sent", emits=[])
async def started(payload: Any) -> None:
    STARTED.append(payload)


def choose(event: Event) -> bool:
    raise ValueError(next((c.text for c in CANARIES if c.payload == event.data), None))


@flow("fussy", start_on={"kind": "secret.sent", "when": choose}, emits=[])
async def fussy(payload: Any) -> None: ...


WAITING = [catcher, late, stuck, asked, started, fussy]


class LeakyRuns:
    """All output of runs with secrets in it."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.seen: dict[str, str] = {}

    async def execute(self) -> None:
        payload = PAYLOADS
        async with (
            App(self.url, handlers=[leaky, deliver, honest, last, *WAITING], redact=REDACT) as app,
            app.workers.background(),
        ):
            await self._wait(app)
            self.run = await app.start("leaky", payload, tags={"note": "Bearer tags-are-seen-too"})
            await app.runs.wait(self.run, timeout=60)
            self.honest = await app.start("honest", payload)
            self.result = await app.result(self.honest, timeout=60)
            with pytest.raises(RunFailed) as problem:
                await app.result(self.run)
            await self._collect(app)
            self.seen["the exception"] = str(problem.value)

    async def _wait(self, app: App) -> None:
        """Send each secret to a wait that was registered before, to one that is registered later, and to a flow."""
        self.late = await app.start(late, key="late")
        catchers = [await app.start(catcher, n) for n in range(len(CANARIES))]
        self.stuck = [await app.start(stuck, n, key=f"stuck-{n}") for n in range(len(CANARIES))]
        ask = await app.start(asked, key="asked")

        async def list_waits() -> Any:
            waits = await app.waits.list(limit=500)
            return waits if len(waits) == 2 * len(CANARIES) + 2 else None

        waits = await until(list_waits, 60)
        for payload in PAYLOADS:
            await app.emit("secret.sent", payload)
        await app.emit("go")
        (trigger,) = [wait.id for wait in waits if wait.kind == "trigger"]
        await app.waits.fire(await app.waits.token(trigger), PAYLOADS)
        self.caught = [await app.result(run, timeout=60) for run in catchers]
        self.caught_late = await app.result(self.late, timeout=60)
        self.answer = await app.result(ask, timeout=60)
        await until(lambda: len(STARTED) == len(CANARIES), 60)
        self.seen["explanations"] = "\n".join([line for run in self.stuck for line in await app.runs.why(run)])

    async def _collect(self, app: App) -> None:
        streams = await app.store.streams("nq:", limit=1000)
        assert {f"nq:flow:{self.run}", "nq:flow:late", "nq:global"} <= set(streams)
        events = [event for stream in streams for event in await app.events.read_all(stream)]
        self.kinds = {event.kind for event in events}
        self.seen["events"] = "\n".join(json.dumps([e.data, e.meta, e.subject], ensure_ascii=False) for e in events)
        letters = [letter for _, letter in await app.dead_letters.list("deliver", limit=1000)]
        self.letters = len(letters)
        self.seen["dead letters"] = "\n".join(json.dumps(letter.error) for letter in letters)
        rows = await app.jobs.list("deliver", "failed", limit=1000)
        self.seen["failed jobs"] = "\n".join(json.dumps(row.error) for row in rows)


STORES: dict[str, Callable[[Path], str]] = {
    "file": lambda folder: f"sqlite:///{folder}/canaries.db",
    "postgres": lambda _folder: postgres_server.prepared_url(),
    "redis": lambda _folder: redis_server.url(),
}


@pytest.fixture(scope="module", params=STORES)
def leaky_runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LeakyRuns]:
    leaky_runs = LeakyRuns(STORES[request.param](tmp_path_factory.mktemp("canaries")))
    pretty, lines = io.StringIO(), io.StringIO()
    with restore_loggers("", "penstock"):
        configure("debug", "json", logger="", redactor=Redactor(REDACT), stream=lines)
        configure("debug", "pretty", redactor=Redactor(REDACT), stream=pretty)
        logging.getLogger("penstock").propagate = True
        asyncio.run(leaky_runs.execute())
    leaky_runs.seen["the log"], leaky_runs.seen["the log in JSON"] = pretty.getvalue(), lines.getvalue()
    yield leaky_runs
    for received in (DELIVERED, INPUTS, STARTED):
        received.clear()


@pytest.fixture(scope="module")
def command_outputs(leaky_runs: LeakyRuns) -> dict[str, str]:
    """Return the output of commands about these runs."""
    found: dict[str, str] = {}
    commands = [
        [*command, run] for command in (["runs", "show"], ["events"]) for run in (leaky_runs.run, leaky_runs.late)
    ]
    commands += [
        ["runs", "show", leaky_runs.honest],
        ["waits", "list", "--limit", "500"],
        ["doctor", leaky_runs.stuck[0]],
    ]
    for command in [*commands, *([*command, "--json"] for command in commands)]:
        out, err = io.StringIO(), io.StringIO()
        with (
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
            pytest.MonkeyPatch.context() as environment,
        ):
            environment.setenv("PENSTOCK_REDACT", ",".join(REDACT))
            code = main([*command, "--url", leaky_runs.url, "--debug"])
        assert code == 0, err.getvalue()
        found[" ".join(command)] = out.getvalue() + err.getvalue()
    return found


def leaks(text: str) -> list[str]:
    # JSON and repr write a newline and a quote in their own way; a secret has neither.
    return [canary.secret for canary in CANARIES if canary.secret in text]


def test_there_are_fifty_canaries() -> None:
    assert len(CANARIES) == len({canary.secret for canary in CANARIES}) == 50


def test_every_kind_of_output_appeared(leaky_runs: LeakyRuns) -> None:
    """The other tests prove nothing about a kind of output that never appeared."""
    kinds = {"flow.started", "step.completed", "step.failed", "log", "step.progress", "step.partial", "secret.seen"}
    assert kinds <= leaky_runs.kinds
    assert leaky_runs.letters == len(CANARIES)
    assert leaky_runs.seen["the log in JSON"].count("by hand") == len([c for c in CANARIES if c.text is not None])
    assert leaky_runs.seen["the log"].count("Traceback") == len(CANARIES)


@pytest.mark.spec("000-4.2.5", "000-16.20", "002-8.5")
@pytest.mark.parametrize(
    "place",
    ["events", "dead letters", "failed jobs", "the exception", "explanations", "the log", "the log in JSON"],
)
def test_no_secret_is_in_events_errors_or_logs(leaky_runs: LeakyRuns, place: str) -> None:
    assert leaks(leaky_runs.seen[place]) == []
    assert REDACTED in leaky_runs.seen[place] or place == "the exception"


def test_no_secret_is_in_the_output_of_commands(command_outputs: dict[str, str]) -> None:
    assert {command: leaks(text) for command, text in command_outputs.items() if leaks(text)} == {}
    assert all(REDACTED in text for text in command_outputs.values())


def test_tags_are_redacted(leaky_runs: LeakyRuns) -> None:
    assert "tags-are-seen-too" not in "".join(leaky_runs.seen.values())


def test_handlers_get_the_real_values(leaky_runs: LeakyRuns) -> None:
    payload = PAYLOADS
    assert INPUTS[0] == payload
    assert leaky_runs.result == payload
    assert sorted(map(json.dumps, DELIVERED)) == sorted(map(json.dumps, payload))


def test_waits_triggers_and_started_flows_get_the_real_values(leaky_runs: LeakyRuns) -> None:
    assert leaky_runs.caught == leaky_runs.caught_late == leaky_runs.answer == PAYLOADS
    assert sorted(map(json.dumps, STARTED)) == sorted(map(json.dumps, PAYLOADS))


async def read_raw_streams(url: str) -> list[str]:
    """Return what a person reads in the store itself: the bodies of events, as the documentation shows it."""
    if url.startswith("sqlite"):
        connection = apsw.Connection(url.removeprefix("sqlite:///"))
        return [bytes(body).decode() for (body,) in connection.execute("SELECT body FROM events").fetchall()]
    if url.startswith("postgres"):
        address = read_address(url)
        postgres = await asyncpg.connect(address.dsn)
        try:
            return [row[0] for row in await postgres.fetch(f'SELECT body::text FROM "{address.schema}".events')]
        finally:
            await postgres.close()
    async with App(url) as app, redis.asyncio.Redis.from_url(url.partition("?")[0]) as client:
        streams = await app.store.streams("nq:", limit=1000)
        return [str(entry) for stream in streams for entry in await client.xrange(stream)]


def test_no_secret_is_in_the_streams_of_the_store_itself(leaky_runs: LeakyRuns) -> None:
    bodies = asyncio.run(read_raw_streams(leaky_runs.url))
    assert len(bodies) > 1000
    assert leaks("\n".join(bodies)) == []


@pytest.mark.spec("000-4.2.5")
@pytest.mark.parametrize("canary", CANARIES, ids=lambda canary: canary.secret[:24])
def test_each_canary_is_redacted(canary: Canary) -> None:
    redactor = Redactor(REDACT)
    hidden = redactor.redact_json(json.dumps(canary.payload).encode()).decode()
    assert canary.secret not in hidden
    assert json.loads(hidden) == redactor.redact_value(canary.payload)
    assert redactor.redact_value(redactor.redact_value(canary.payload)) == redactor.redact_value(canary.payload)
    if canary.text is not None:
        once = redactor.redact_text(canary.text)
        assert canary.secret not in once
        assert redactor.redact_text(once) == once


NO_SECRETS = [
    "the secret of a good soup is patience",
    "https://example.com:8080/a/b@c?page=2",
    "https://ann@example.com/inbox",
    "sqlite:////var/lib/shop.db",
    "basic skills and bearer bonds",
    "2024-05-01T00:00:00Z step charge of run 0190a7c2-7d1e-7c3f-9f58-0c2b1e6c9f10",
    "tokens are counted, passwords are not",
]


@pytest.mark.parametrize("text", NO_SECRETS)
def test_text_without_secrets_is_unchanged(text: str) -> None:
    redactor = Redactor(REDACT)
    assert redactor.redact_text(text) == text
    data = json.dumps({"note": text, "max_tokens": 100, "tokens_used": 7, "number": 5}).encode()
    assert redactor.redact_json(data) is data or json.loads(redactor.redact_json(data)) == json.loads(data)


def test_numbers_none_and_containers() -> None:
    value = {"token": 123456, "max_tokens": 100, "password": None, "secrets": ["a", "b"], "cookie": {"a": 1}}
    assert Redactor(REDACT).redact_value(value) == {
        "token": REDACTED,
        "max_tokens": 100,
        "password": None,
        "secrets": REDACTED,
        "cookie": REDACTED,
    }


def test_the_default_words() -> None:
    redactor = Redactor(Settings().redact)
    keys = (
        "pwd",
        "dbPwd",
        "user_password",
        "PASSWD",
        "client-secret",
        "accessToken",
        "Authorization",
        "cookies",
        "apiKey",
    )
    assert redactor.redact_value(dict.fromkeys(keys, "x1")) == dict.fromkeys(keys, REDACTED)
    assert redactor.redact_value({"cwd": "/srv", "pw": 1, "tokens": 7}) == {"cwd": "/srv", "pw": 1, "tokens": 7}
    assert redactor.redact_text("pwd=hunter2") == f"pwd={REDACTED}"


def test_without_patterns_nothing_is_redacted() -> None:
    redactor = Redactor(())
    text = "password=hunter2 Bearer abcdefghij"
    assert redactor.redact_text(text) == text
    assert redactor.redact_value({"password": "hunter2"}) == {"password": "hunter2"}
    assert redactor.redact_json(b'{"password":"hunter2"}') == b'{"password":"hunter2"}'


@pytest.mark.spec("000-4.2.5", "000-16.20")
def test_custom_patterns() -> None:
    redactor = Redactor(["iban"])
    assert redactor.redact_value({"IBAN": "DE1", "password": "x"}) == {"IBAN": REDACTED, "password": "x"}
    assert redactor.redact_text("iban=DE1 Bearer abcdefghij") == f"iban={REDACTED} Bearer {REDACTED}"


@pytest.mark.parametrize(
    "part",
    [
        "x",
        "token",
        "tok-en_",
        "a.",
        "a:b@",
        "aa://",
        "Bearer ",
        "eyJ",
        "eyJaaaaaaaa.",
        "password=",
        '"password": "',
        " \t",
    ],
)
def test_redaction_takes_linear_time(part: str) -> None:
    redactor = Redactor(REDACT)

    def measure(length: int) -> float:
        """Return the CPU time of this thread in seconds."""
        text, started = (part * length)[:length], time.thread_time()
        redactor.redact_text(text)
        return time.thread_time() - started

    short = max(min(measure(10_000) for _ in range(3)), 0.0002)
    assert measure(160_000) < 80 * short  # about 16 times as long; 256 times if it grew with the square


def test_a_private_key_is_redacted_before_a_long_error_is_cut(tmp_path: Path) -> None:
    key = "-----BEGIN PRIVATE KEY-----\n" + "MIIEvQIBADANBgkq\n" * 200 + "-----END PRIVATE KEY-----"

    @flow("long")
    async def long() -> None:
        raise Permanent("x" * 1900 + key + "y" * 6000)

    async def execute() -> str:
        async with App(":memory:", handlers=[long], redact=REDACT) as app, app.workers.background():
            run = await app.start(long)
            await app.runs.wait(run, timeout=60)
            return json.dumps([event.data for event in await app.events.read_all(f"nq:flow:{run}")])

    assert "MIIEvQIBADANBgkq" not in asyncio.run(execute())
