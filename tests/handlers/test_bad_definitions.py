"""An invalid option of @flow, @step or @job is reported with file, line, the value and what to write."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from penstock import App, PenstockError, Subscription, flow, job, step

HEAD = "from penstock import *\n"

DECORATED = {
    "when": (
        '@step(on="a", when=5)',
        "`when` for event kind 'a' is 5, but must be a function that takes the event, or a dict of",
    ),
    "map": ('@step(on="a", map=5)', "`map` for event kind 'a' is 5, but must be a function that takes the event"),
    "a mapping as map": (
        '@step(on="a", map={"x": 1})',
        "`map` for event kind 'a' is {'x': 1}, but must be a function that takes the event",
    ),
    "an async when": (
        '@step(on="a", when=Context.log)\n@step(on="a", when="x")',
        "`when` for event kind 'a' is 'x', but must be a function that takes the event",
    ),
    "when of a mapping": (
        '@step(subscriptions=[{"eventKind": "a", "when": 5}])',
        "`when` for event kind 'a' is 5, but must be a function that takes the event",
    ),
    "when without on": ('@step(subscriptions=[Subscription("a")], when={"x": 1})', "when requires on="),
    "map without on": ("@step(map=str)", "map requires on="),
    "subscriptions": ('@step(subscriptions="a")', "`subscriptions` must be a list such as [Subscription("),
    "one subscription": ("@step(subscriptions=[5])", "a subscription must be a mapping with keys such as kind"),
    "on": ("@step(on=5)", "`on` must be an event kind"),
    "one of on": ("@step(on=[5])", "`on` has the invalid event kind 5; a kind is words of letters"),
    "emits": ("@step(emits=5)", "`emits` must be an event kind"),
    "accepts": ('@flow("f", accepts=5)', "`accepts` must be an event kind"),
    "start_on": ('@flow("f", start_on=5)', "`start_on` must be an event kind"),
    "one of start_on": (
        '@flow("f", start_on=[5])',
        "a subscription must be a mapping with keys such as kind, map, stream, when; got 5",
    ),
    "version": ('@flow("f", version=1)', 'version must be a string, such as version="1", got 1'),
    "events": ('@flow("f", events=["x"])', "events must be a mapping of each kind to its schema"),
    "compensation": ('@flow("f", compensation=5)', "compensation.step must be the name of the step that undoes this"),
    "compensation's step": (
        '@flow("f", compensation={"step": 5})',
        "compensation.step must be the name of the step that undoes this one",
    ),
    "names of errors": (
        '@job(retry=RetryPolicy(3, retriable_errors="Oh"))',
        "retry.retriable_errors must be a list of",
    ),
    "an error itself": (
        "@job(retry=RetryPolicy(3, retriable_errors=[OSError]))",
        "must be a list of error class names or codes",
    ),
    "backoff": ('@job(retry=RetryPolicy(3, Backoff("lin")))', "retry.backoff.type must be 'fixed' or 'expon"),
    "a backoff of a mapping": (
        '@job(retry={"backoff": {"type": "linear"}})',
        "retry.backoff.type must be 'fixed' or 'exponential', got 'linear'",
    ),
    "a slip in a policy": (
        '@job(retry={"attempt": 3})',
        "retry has an unknown key 'attempt'; did you mean 'attempts'?",
    ),
    "a stranger in a policy": (
        '@job(retry={"times": 3})',
        "known keys: attempts, backoff, on_fail, retriable_errors",
    ),
    "a slip in a backoff": ('@job(retry={"backoff": {"max_dely": 3}})', "'max_dely'; did you mean 'max_delay'?"),
    "on_fail": ('@job(retry={"on_fail": "stop"})', "retry.on_fail must be 'dlq' or 'drop', got 'stop'"),
    "a policy's on_fail": (
        '@job(retry=RetryPolicy(on_fail="stop"))',
        "retry.on_fail must be 'dlq' or 'drop', got 'stop'",
    ),
    "wait": ('@step(wait="1h")', "`wait` must be a mapping whose `type` is time, event or trigger, such as {"),
    "a slip in a wait": ('@step(wait={"type": "time", "dely": 5})', "wait has an unknown key 'dely'; did you mean"),
    "a flow that is no name": ('@step(on="a", flow=3)', "invalid flow name 3; use at most"),
    "a number as a flow": ("@flow(3)", "invalid flow name 3; use at most"),
    "an empty name": ('@job(queue="q", name="")', "invalid name ''; use at most"),
    "an empty step": ('@flow("f", step="")', "invalid name ''; use at most"),
    "attempts": ('@job(retry=RetryPolicy(attempts="x"))', "retry.attempts must be a whole number of at least 1"),
    "dead_letter_queue": ('@job(queue="dl", dead_letter_queue=7)', "dead_letter_queue must be a string, got 7"),
    "idempotency_key": ('@flow("f", key=5)', 'key must be "auto"'),
    "an empty key": ('@job(key="")', 'key must be "auto"'),
    "rate_key": ('@job(rate_limit="5/1s", rate_key=5)', "rate_key must be a path in the input"),
    "max": (
        '@job(rate_limit={"max": "5", "duration": "1s"})',
        "rate_limit.max must be a whole number of at least 1, got '5'",
    ),
    "durationMs": (
        '@job(rate_limit={"max": 5, "durationMs": [1]})',
        "rate_limit.duration_ms must be a non-negative number of milliseconds",
    ),
    "rate_limit's duration": (
        '@job(rate_limit={"max": 5, "duration": "x"})',
        "rate_limit.duration: invalid duration 'x'",
    ),
    "timeout": ('@job(timeout="soon")', "timeout: invalid duration 'soon'; use"),
    "delay": ('@step(delay="soon")', "delay: invalid duration 'soon'; use"),
    "a wait's timeout": (
        '@step(wait=Await("event", "a", timeout="soon"))',
        "the timeout of an await: invalid duration 'soon'",
    ),
    "timeoutMs": ('@step(wait={"eventKind": "a", "timeoutMs": "5s"})', "wait.timeout_ms must be a number"),
    "an age": ('@job(keep_failed="soon")', "keep_failed: invalid duration 'soon'; use"),
    "no parentheses": ("@job", "@job requires parentheses, as in @job()"),
    "a step's parentheses": ("@step", "@step requires parentheses, as in @step()"),
    "a flow's name": ("@flow", '@flow requires a name, such as @flow("x")'),
    "no name": ("@flow()", '@flow requires a name, as in @flow("name")'),
    "an unnamed queue": (
        '@job("mail")',
        "@job got the positional argument 'mail'; did you mean @job(queue='mail')? Pass options as name=value",
    ),
    "an unnamed event": ('@step("paid")', "did you mean @step(on='paid')?"),
    "an unnamed value": ("@job(3)", "@job got the positional argument 3; use @job(). Pass options as name=value"),
    "an unknown option": ("@job(retries=3)", "@job has an unknown key 'retries'; did you mean 'retry'?"),
    "one of a step": (
        "@step(nothing_like_it=3)",
        "@step has an unknown key 'nothing_like_it'; known keys: call_concurrency, compensat",
    ),
    "one of a flow": ('@flow("f", timout=3)', "did you mean 'timeout'?"),
    "a flow's event": (
        '@flow("f", on="a")',
        "@flow has no option 'on'; app.start starts a flow; to start it with each",
    ),
    "a job's event": ('@job(on="a")', "@job has no option 'on'; app.enqueue starts a job"),
    "an event with a space": ('@step(on="a b")', "`on` has the invalid event kind 'a b'; a kind is words of letters"),
}


@pytest.mark.parametrize("what", DECORATED)
def test_an_invalid_decorator_is_reported(what: str, tmp_path: Path) -> None:
    decorator, expected = DECORATED[what]
    (tmp_path / "bad.py").write_text(f"{HEAD}\n\n{decorator}\ndef x(): ...\n")
    (problem,) = App(":memory:", dir=tmp_path).registry.problems
    assert (problem.code, problem.file) == ("bad_definition", str(tmp_path / "bad.py"))
    assert expected in problem.message
    assert problem.line in (4, 5)
    assert str(problem).startswith(f"{tmp_path}/bad.py:{problem.line}: ")


CONFIGS = {
    "triggers": ("{'triggers': 5}", "`triggers` must be an event kind"),
    "emits": ("{'step': 's', 'emits': [5]}", "`emits` has the invalid event kind 5; a kind is words"),
    "subscriptions": ("{'subscriptions': {'eventKind': 'a'}}", "`subscriptions` must be a list"),
    "flow": ("{'flow': 'shop'}", "config.flow must be a mapping with keys such as id, role"),
    "dlq": ("{'dlq': 'q'}", "config.dlq must be a mapping with keys such as enabled, queue"),
    "timeoutMs": ("{'timeoutMs': [5]}", "config.timeout_ms must be a non-negative number of milliseconds"),
    "await": ("{'await': '1h'}", "`await` must be a mapping whose `type` is time, event or trigger"),
    "a flow's id": ("{'flow': {'id': 3, 'triggers': 'a'}}", "invalid flow name 3; use at most"),
    "a main flow's id": ("{'flow': {'id': 3, 'role': 'main'}}", "invalid flow name 3; use at most"),
    "timeoutMs without end": ("{'timeoutMs': 10**400}", "36525d"),
    "a list": ("['queue']", "config must be a mapping with keys such as breaker, call_concurrency"),
}


@pytest.mark.parametrize("what", CONFIGS)
def test_an_invalid_config_is_reported(what: str, tmp_path: Path) -> None:
    config, expected = CONFIGS[what]
    (tmp_path / "bad.py").write_text(f"config = {config}\ndef handle(): ...\n")
    (problem,) = App(":memory:", dir=tmp_path).registry.problems
    assert problem.code == "bad_definition"
    assert expected in problem.message


def test_on_and_subscriptions_are_combined() -> None:
    @flow("f", emits=["a", "b"])
    async def begin() -> None: ...

    @step(on="b", when={"x": 1}, subscriptions=[Subscription("a")])
    async def work() -> None: ...

    app = App(":memory:", handlers=[begin, work])
    assert app.registry.problems == ()
    assert app.registry.flow("f").steps["work"].kinds == ("b", "a")


def key(order: Any) -> str:
    return str(order["id"])


@flow("keyed", key=key)
async def keyed(order: Any) -> None: ...


@job(queue="mail", key=key)
async def mail(order: Any) -> None: ...


async def test_the_error_of_a_key_function_names_it() -> None:
    async with App(":memory:", handlers=[keyed, mail]) as app:
        for call in (app.start("keyed", {}), app.enqueue("mail", {})):
            with pytest.raises(PenstockError, match=r"the key function of \w+ \(.*\.py:\d+\).*: KeyError: 'id'") as e:
                await call
            assert e.value.code == "bad_argument"


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"handlers": mail}, "handlers must be a list, got mail; for a single value, pass [mail]"),
        ({"handlers": 5}, "handlers must be a list, got 5"),
        ({"handlers": "mail"}, "handlers must be a list, got 'mail'"),
        ({"handlers": (), "bridges": 5}, "bridges must be a list, got 5; for a single value, pass [5]"),
    ],
)
def test_a_single_value_instead_of_a_list_is_refused(options: dict[str, Any], expected: str) -> None:
    with pytest.raises(PenstockError) as problem:
        App(":memory:", **options)
    assert (problem.value.code, expected in str(problem.value)) == ("bad_argument", True)
