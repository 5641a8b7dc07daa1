"""An App with one of everything, and for each method the arguments of a call that gets beyond its first checks."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from penstock import App, Context, flow, job
from penstock.app.entities import Emission
from penstock.app.tokens import Caller
from penstock.core.errors import Permanent
from penstock.entities import make_entity
from penstock.testing.until import until

TEST_TIMEOUT_S = 30
DAG = {"id": "d", "nodes": [{"id": "a", "type": "transform"}]}
USUAL: dict[str, Any] = {
    "flow": "shop",
    "queue": "mail",
    "kind": "order.paid",
    "stream": "nq:global",
    "subject": "run-1",
    "key": "k-1",
    "handler": lambda _event: None,
    "listener": print,
    "change": lambda value: value,
    "inputs": [1],
    "tree": {"queue": "mail"},
    "event": "1-1",
    "action": "cancel",
    "every": "1m",
    "data": {"a": 1},
    "value": 1,
    "run": "run-1",
    "type": "trigger",
    "connection": object(),
    "group": "0123456789ab",
    "name": "ada",
    "path": "hooks/paid",
    "method": "POST",
    "headers": {},
    "body": b"{}",
    "reducer": lambda events: list(events),
    "text": "pst_0123_secret",
    "ticket": "a ticket",
    "caller": Caller("ada", "admin"),
    "connect": "sqlite:///nowhere/nothing.db",
    "dag": DAG,
    "old": 1,
    "new": 1,
    "urn": "tally-1",
    "status": "done",
    "emission": Emission("tally-1", "x.tally-1", "add", 1),
}
# After these, other calls find less.
SPENT = (
    "cancel",
    "fire",
    "resolve",
    "discard",
    "discard_all",
    "discard_group",
    "redrive",
    "redrive_all",
    "redrive_group",
)
# What a facet's methods are usually called with, where it differs.
OF_FACET: dict[str, dict[str, Any]] = {
    "jobs": {"id": "mail-1"},
    "schedules": {"id": "every"},
    "blobs": {"key": "file", "data": b"1"},
    "dags": {"id": "d"},
    "entities": {"type": "tally", "event": "add"},
}
OPTIONS: dict[str, dict[str, Any]] = {
    "schedules.add": {"flow": "shop", "every": "1m"},
    "webhooks.register": {"path": "hooks/new", "event": "order.paid"},
    "queues.set_limits": {"max_active": 3},
    "runs.bulk": {"flow": "shop"},
    "runs.fork": {"event": "1-1"},
}


@flow("shop", accepts=["order.paid"])
async def shop(order: Any) -> None: ...


@flow("patient")
async def patient(_input: Any, ctx: Context) -> None:
    await (await ctx.wait.trigger("approval")).wait()


@job(queue="mail")
async def send(mail: Any) -> None:
    if mail == "bad":
        raise Permanent("no such address")


def _add(data: dict[str, Any], payload: Any) -> None:
    data["sum"] = payload


tally = make_entity(
    {
        "name": "tally",
        "states": {"initial": "open", "idles": ["open"], "finals": ["done"]},
        "transitions": [
            {"event": "add", "from": "open", "to": "open", "actions": ["add"]},
            {"event": "finish", "from": "open", "to": "done"},
        ],
    },
    {"add": _add},
)
HANDLERS = (shop, patient, send, tally)


async def settle(app: App, n: int = 0) -> dict[str, Any]:
    """Make the n-th dead letter, trigger, entity and run of a dag. Return their names."""
    letter, trigger, dag, urn = f"bad-{n}.dlq", f"patient-{n}", f"dag-{n}", f"tally-{n}"
    await app.dags.register(DAG)
    await app.enqueue("mail", "bad", key=f"bad-{n}")
    await app.start("patient", key=trigger)
    await app.dags.start("d", {"a": 1}, key=dag)
    emitted = await app.entities.emit(urn, "add", 1)
    async with app.workers.background():
        await emitted.result(timeout=TEST_TIMEOUT_S)
        await app.runs.wait(dag, timeout=TEST_TIMEOUT_S)
        waits = await until(lambda: app.waits.list(run=trigger), TEST_TIMEOUT_S)
        groups = await until(app.dead_letters.groups, TEST_TIMEOUT_S)
    added, _ = await app.tokens.add("ada")
    silence = await app.alerts.silence()
    ids = {
        "waits": waits[0].id,
        "dead_letters": letter,
        "dead_letters.group": groups[0].id,
        "tokens": added.id,
        "alerts": silence.id,
    }
    token = await app.waits.token(waits[0].id)
    return {
        "id": ids, "run": {"dags": dag}, "token": token, "group": groups[0].id, "emission": emitted, "urn": urn,
    }  # fmt: skip


async def renew(app: App) -> None:
    """Make again what the calls of the last method may have removed."""
    await app.start("shop", {"order": 1}, key="run-1")
    await app.enqueue("mail", 1, key="mail-1")
    await app.schedules.add("every", flow="shop", every="1h")
    await app.webhooks.register("hooks/paid", event="order.paid")
    await app.blobs.put("file", b"1")


def usual_arguments(where: str, method: Callable[..., Any], chosen: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return arguments with which a call gets beyond its first checks."""
    facet = where.partition(".")[0]
    known = {**USUAL, "id": "run-1", "token": "t-1.secret", **OF_FACET.get(facet, {})}
    for name, value in (chosen or {}).items():
        known[name] = value.get(where, value.get(facet, known[name])) if isinstance(value, dict) else value
    needed = [one.name for one in inspect.signature(method).parameters.values() if one.default is one.empty]
    return {name: known[name] for name in needed if name in known} | OPTIONS.get(where, {})
