"""`ctx`: the same tests for `async def` and for `def` handlers.

A script is a generator that yields what an `async def` would await; the same script becomes a handler of either style.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable, Generator
from typing import Any

import pytest

from penstock import flow, job, step
from penstock.core.errors import StaleAttempt
from penstock.core.events import BadEmit
from penstock.testing.clock import FakeClock
from penstock.testing.until import until

Script = Callable[[Any, Any], Generator[Any, Any, Any]]
AGAIN = {"attempts": 3, "backoff": {"delay": "1ms"}}


class Latch:
    """Blocks a handler until the test opens it."""

    def __init__(self, is_async: bool) -> None:
        self._is_async = is_async
        self._async = asyncio.Event()
        self._sync = threading.Event()

    def wait(self) -> Any:
        return self._async.wait() if self._is_async else self._sync.wait(20)

    def open(self) -> None:
        self._async.set()
        self._sync.set()


class Style:
    """Makes `async def` or `def` handlers of scripts."""

    def __init__(self, name: str) -> None:
        self.is_async = name == "async"

    def __call__(self, script: Script) -> Any:
        """Return the script as a handler with the same name."""

        async def on_the_loop(input: Any, ctx: Any) -> Any:
            script_run = _ScriptRun(script(input, ctx))
            while not script_run.over:
                answer: Any = script_run.yielded
                try:
                    script_run.go(await answer if inspect.isawaitable(answer) else answer)
                except Exception as problem:
                    script_run.fail(problem)
            return script_run.result

        def on_a_thread(input: Any, ctx: Any) -> Any:
            script_run = _ScriptRun(script(input, ctx))
            while not script_run.over:
                script_run.go(script_run.yielded)
            return script_run.result

        handler = on_the_loop if self.is_async else on_a_thread
        handler.__name__ = script.__name__
        return handler

    def latch(self) -> Latch:
        return Latch(self.is_async)


class _ScriptRun:
    """A running script."""

    def __init__(self, script: Generator[Any, Any, Any]) -> None:
        self._script = script
        self.over = False
        self.yielded: Any = None
        self.result: Any = None
        self._move(lambda: next(script))

    def go(self, answer: Any) -> None:
        self._move(lambda: self._script.send(answer))

    def fail(self, problem: Exception) -> None:
        if self.over:
            raise problem
        self._move(lambda: self._script.throw(problem))

    def _move(self, forward: Callable[[], Any]) -> None:
        try:
            self.yielded = forward()
        except StopIteration as end:
            self.over, self.result = True, end.value
        except BaseException:
            self.over = True
            raise


@pytest.fixture(params=["async", "sync"])
def style(request: pytest.FixtureRequest) -> Style:
    return Style(request.param)


def only(style: Style, script: Script, **options: Any) -> Any:
    """Return a flow of one step."""
    return flow("only", **options)(style(script))


@pytest.mark.spec("000-8.3", "001-1.10")
async def test_the_identity_of_a_step(app: Any, style: Style) -> None:
    def begin(input: Any, ctx: Any) -> Any:
        yield ctx.emit("go", 1)
        yield ctx.emit("go", 2)

    def identify(input: Any, ctx: Any) -> Any:
        yield None
        return [ctx.run_id, ctx.flow, ctx.step, ctx.n, ctx.attempt, ctx.queue, ctx.job_id, str(ctx.correlation_id)]

    first = flow("only", emits=["go"])(style(begin))
    second = step(on="go", mode="each", queue="side")(style(identify))
    async with app(first, second) as a, a.workers.background():
        run = await a.start("only", correlation_id="c")
        one, two = await a.result(run, timeout=20)
        assert one == [run, "only", "identify", 1, 1, "side", f"{run}.identify.1", "c"]
        assert two == [run, "only", "identify", 2, 1, "side", f"{run}.identify.2", "c"]


@pytest.mark.spec("000-6.2")
async def test_the_identity_of_a_job(app: Any, style: Style) -> None:
    def identify(input: Any, ctx: Any) -> Any:
        yield None
        return [ctx.run_id, ctx.flow, ctx.step, ctx.n, ctx.attempt, ctx.queue, ctx.job_id, ctx.correlation_id()]

    async with app(job(queue="plain")(style(identify))) as a, a.workers.background():
        id = await a.enqueue("plain")
        assert await a.jobs.result(id, timeout=20) == [None, None, None, 1, 1, "plain", id, id]
        other = await a.enqueue("plain", correlation_id="c")
        assert (await a.jobs.result(other, timeout=20))[-1] == "c"


@pytest.mark.spec("000-7.31")
async def test_every_way_to_emit(app: Any, style: Style) -> None:
    def script(input: Any, ctx: Any) -> Any:
        yield ctx.emit("plain.kind", {"a": 1})
        yield ctx.emit("bare")
        yield ctx.emit({"kind": "as.dict", "data": [1]})
        yield ctx.emit({"kind": "with.id", "data": 2, "correlationId": "other"})
        yield ctx.emit({"kind": "own.id", "correlationId": ctx.correlation_id})

    async with app(only(style, script)) as a, a.workers.background():
        run, status = await a.run_to_end("only")
        assert status == "completed"
        emitted = [
            (e.kind, e.data, e.correlation_id)
            for e in await a.stream(run)
            if "." not in e.kind or e.kind[:5] not in ("flow.", "step.")
        ]
        assert emitted == [
            ("plain.kind", {"a": 1}, run),
            ("bare", None, run),
            ("as.dict", [1], run),
            ("with.id", 2, "other"),
            ("own.id", None, run),
        ]


async def test_emitting_events_with_a_type_key(app: Any, style: Style) -> None:
    def script(input: Any, ctx: Any) -> Any:
        yield ctx.emit({"type": "log", "data": "Starting resize"})
        yield ctx.emit({"type": "log", "data": {"level": "warn", "msg": "careful"}})
        yield ctx.emit({"type": "log", "data": {"level": "error", "message": "bad"}})
        yield ctx.emit({"type": "progress", "data": 50})
        yield ctx.emit({"type": "partial", "data": {"row": 1}})

    async with app(only(style, script)) as a, a.workers.background():
        run, status = await a.run_to_end("only")
        assert status == "completed"
        view = await a.runs.get(run)
        logs = [(entry["level"], entry["msg"]) for entry in view.logs]
        assert logs == [("info", "Starting resize"), ("warn", "careful"), ("error", "bad")]
        assert (view.steps["script"].progress, view.steps["script"].partials) == (50, [{"row": 1}])
        assert view.emitted == []


@pytest.mark.spec("001-1.4")
@pytest.mark.parametrize(
    "kind",
    [
        *(
            "flow.completed",
            "step.completed",
            "job.failed",
            "trigger.fired",
            "schema.error",
            "buffer.drop",
            "state.set",
        ),
        *("", " ", "a b", "a..b", ".a", "a.", "a:b", "ü", "x" * 257, None, 7),
    ],
)
async def test_an_invalid_or_reserved_kind_is_refused(memory: Any, style: Style, kind: Any) -> None:
    def script(input: Any, ctx: Any) -> Any:
        for form in ({"kind": kind},) if not isinstance(kind, str) else (kind, {"kind": kind}):
            try:
                yield ctx.emit(form)
            except BadEmit:
                continue
            return f"{form!r} was taken"
        return "refused"

    async with memory(only(style, script)) as a, a.workers.background():
        run = await a.start("only")
        assert await a.result(run, timeout=20) == "refused"
        assert await a.kinds(run) == ["flow.started", "step.started", "step.completed", "flow.completed"]


@pytest.mark.parametrize("event", [{}, {"type": "unheard"}, {"data": 1}, {"kind": "x.y", "correlationId": 7}])
async def test_an_invalid_event_mapping_is_refused(memory: Any, style: Style, event: Any) -> None:
    def script(input: Any, ctx: Any) -> Any:
        try:
            yield ctx.emit(event)
        except BadEmit:
            return "refused"

    async with memory(only(style, script)) as a, a.workers.background():
        assert await a.run_for_result("only") == "refused"


async def test_an_undeclared_kind_fails_the_step(app: Any, style: Style) -> None:
    def script(input: Any, ctx: Any) -> Any:
        yield ctx.emit("declared")
        yield ctx.emit("undeclared")

    async with app(only(style, script, emits=["declared"])) as a, a.workers.background():
        run, status = await a.run_to_end("only")
        assert status == "failed"
        failed = (await a.events_of(run, "step.failed"))[0].data
        assert failed["code"] == "undeclared_event"
        assert "but declares emits=['declared']; add 'undeclared' to that list" in failed["error"]
        assert "declared" not in await a.kinds(run), "nothing of a failed attempt is emitted"


async def test_a_step_that_declares_nothing_may_emit_nothing(memory: Any, style: Style) -> None:
    def script(input: Any, ctx: Any) -> Any:
        yield ctx.emit("anything")

    async with memory(only(style, script, emits=[])) as a, a.workers.background():
        assert (await a.run_to_end("only"))[1] == "failed"


@pytest.mark.spec("001-1.6", "001-1.14")
async def test_an_unserializable_value_is_refused_at_the_call(memory: Any, style: Style) -> None:
    def script(input: Any, ctx: Any) -> Any:
        refused = []
        for call in (
            lambda: ctx.emit("x", object()),
            lambda: ctx.emit("x", "y" * 70_000),
            lambda: ctx.progress(object()),
            lambda: ctx.partial({1, object()}),
            lambda: ctx.state.set("k", object()),
        ):
            try:
                yield call()
            except Exception as problem:
                refused.append(getattr(problem, "code", None))
        return refused

    async with memory(only(style, script)) as a, a.workers.background():
        assert await a.run_for_result("only") == ["not_json", "payload_too_large", "not_json", "not_json", "not_json"]


@pytest.mark.spec("000-4.2.1", "000-4.2.3", "000-6.2", "003-2.19")
async def test_levels_and_fields_of_logs(app: Any, style: Style) -> None:
    def script(input: Any, ctx: Any) -> Any:
        yield ctx.log("plain")
        yield ctx.log("loud", "error", order=7)
        yield ctx.log.debug("d")
        yield ctx.log.info("i")
        yield ctx.log.warning("w", at={"line": 3})
        yield ctx.logger.warn("W")
        yield ctx.logger.error("e")
        yield ctx.log(12345)
        try:
            yield ctx.log("x", "shout")
        except ValueError:
            return "refused"

    async with app(only(style, script)) as a, a.workers.background():
        run = await a.start("only")
        assert await a.result(run, timeout=20) == "refused"
        logs = await a.events_of(run, "log", "script")
        assert [(e.data["level"], e.data["msg"], e.data.get("fields")) for e in logs] == [
            ("info", "plain", None),
            ("error", "loud", {"order": 7}),
            ("debug", "d", None),
            ("info", "i", None),
            ("warn", "w", {"at": {"line": 3}}),
            ("warn", "W", None),
            ("error", "e", None),
            ("info", "12345", None),
        ]
        assert {e.meta["attempt"] for e in logs} == {1}


@pytest.mark.spec("000-1.2")
async def test_logs_progress_and_partials_are_visible_before_the_step_ends(app: Any, style: Style) -> None:
    latch = style.latch()

    def script(input: Any, ctx: Any) -> Any:
        yield ctx.log("started")
        yield ctx.progress(10)
        yield ctx.partial("first half")
        yield ctx.emit("only.at.the.end")
        yield latch.wait()
        yield ctx.progress(100)

    async with app(only(style, script)) as a, a.workers.background():
        run = await a.start("only")

        async def live() -> bool:
            return "step.partial" in await a.kinds(run)

        await until(live)
        view = await a.runs.get(run)
        now = view.steps["script"]
        assert (now.status, now.progress, now.partials) == ("running", 10, ["first half"])
        assert view.logs[0]["msg"] == "started"
        assert "only.at.the.end" not in await a.kinds(run)
        latch.open()
        await a.wait_for_end(run)
        assert (await a.runs.get(run)).steps["script"].progress == 100
        assert "only.at.the.end" in await a.kinds(run)


@pytest.mark.spec("000-7.18")
async def test_a_jobs_progress_is_on_its_row_and_on_its_queues_stream(app: Any, style: Style) -> None:
    latch = style.latch()

    def script(input: Any, ctx: Any) -> Any:
        yield ctx.progress({"done": 3})
        yield ctx.partial([1])
        yield ctx.log("half")
        yield latch.wait()

    async with app(job(queue="plain")(style(script))) as a, a.workers.background():
        id = await a.enqueue("plain")

        async def live() -> Any:
            return (await a.jobs.get(id)).progress

        assert await until(live) == {"done": 3}
        latch.open()
        await a.jobs.result(id, timeout=20)
        kinds = [e.kind for e in await a.job_events("plain") if e.subject == id]
        assert kinds == ["job.added", "job.active", "job.progress", "job.partial", "log", "job.completed"]


@pytest.mark.spec("000-7.27")
async def test_too_many_frames_drop_the_oldest_and_report_it(app: Any, style: Style) -> None:
    latch, started, logged = style.latch(), threading.Event(), threading.Event()

    def script(input: Any, ctx: Any) -> Any:
        started.set()
        yield latch.wait()
        for i in range(2500):
            ctx.log(f"line {i}")
        logged.set()
        yield ctx.progress(100)
        return "done"

    async with app(only(style, script)) as a, a.workers.background():
        run = await a.start("only")
        await until(started.is_set)
        latch.open()
        if not style.is_async:
            logged.wait(20)  # block the loop while the thread logs, so that nothing is sent meanwhile
        assert await a.result(run, timeout=20) == "done"
        logs = [int(e.data["msg"].split()[1]) for e in await a.events_of(run, "log")]
        dropped = [e.data["dropped"] for e in await a.events_of(run, "buffer.drop")]
        # The progress, which came last, is in the buffer too.
        assert len(logs) + sum(dropped) == 2500
        assert sum(dropped) > 0
        assert logs == sorted(logs)
        assert logs[-1] == 2499, "the newest are kept"
        assert (await a.runs.get(run)).steps["script"].progress == 100


# State


@pytest.mark.spec("000-2.4", "000-3.11", "000-4.3.1", "000-4.3.2", "000-4.3.8", "000-8.9", "000-15.1")
async def test_state_is_shared_only_by_the_steps_of_a_run(app: Any, style: Style) -> None:
    def begin(input: Any, ctx: Any) -> Any:
        yield ctx.state.set("name", input)
        yield ctx.state.set(["cart", 1], {"n": 2})
        yield ctx.shared.set(["seen", input], True)
        yield ctx.emit("go")

    def end(input: Any, ctx: Any) -> Any:
        name = yield ctx.state.get("name")
        cart = yield ctx.state.get("cart/1")
        nothing = yield ctx.state.get("nothing")
        default = yield ctx.state.get("nothing", "default")
        return [name, cart, nothing, default]

    async with app(flow("only", emits=["go"])(style(begin)), step(on="go")(style(end))) as a, a.workers.background():
        one, two = await a.start("only", "one"), await a.start("only", "two")
        assert await a.result(one, timeout=20) == ["one", {"n": 2}, None, "default"]
        assert await a.result(two, timeout=20) == ["two", {"n": 2}, None, "default"]
        assert await a.state.of_run(one).get("name") == "one"
        assert await a.state.get("name") is None
        assert await a.state.list("seen") == {"seen/one": True, "seen/two": True}


@pytest.mark.spec("000-4.3.1", "000-4.3.3", "000-4.3.4")
async def test_an_attempt_reads_what_it_wrote(app: Any, style: Style) -> None:
    def script(input: Any, ctx: Any) -> Any:
        state = ctx.state
        yield state.set("a/1", 1)
        yield state.set("a/2", 2)
        yield state.set("b", 3)
        seen = [(yield state.get("a/1")), (yield state.list("a/"))]
        yield state.delete("a/1")
        seen += [(yield state.get("a/1", "gone")), (yield state.list("a/")), (yield state.list())]
        yield state.set("a/1", 4)
        seen += [(yield state.get("a/1")), (yield state.list("a/", limit=1))]
        return seen

    async with app(only(style, script)) as a, a.workers.background():
        assert await a.run_for_result("only") == [
            *(1, {"a/1": 1, "a/2": 2}),
            *("gone", {"a/2": 2}, {"a/2": 2, "b": 3}),
            *(4, {"a/1": 4}),
        ]


async def test_lists_of_state_include_uncommitted_changes(app: Any, style: Style) -> None:
    def script(input: Any, ctx: Any) -> Any:
        before = yield ctx.shared.list("k")
        yield ctx.shared.delete("k1")
        yield ctx.shared.set("k3", 3)
        return [before, (yield ctx.shared.list("k"))]

    async with app(only(style, script)) as a, a.workers.background():
        await a.state.set("k1", 1)
        await a.state.set("k2", 2)
        assert await a.run_for_result("only") == [{"k1": 1, "k2": 2}, {"k2": 2, "k3": 3}]
        assert await a.state.list("k") == {"k2": 2, "k3": 3}


@pytest.mark.spec("000-4.3.2", "000-4.3.6", "000-4.3.7", "000-16.8")
async def test_state_expires(app: Any, style: Style, clock: FakeClock) -> None:
    def script(input: Any, ctx: Any) -> Any:
        if input == "write":
            yield ctx.shared.set("set", 1, ttl="1m")
            yield ctx.shared.patch("patched", lambda _: 1, ttl=60)
            yield ctx.shared.set("kept", 1)
        return [(yield ctx.shared.get("set")), (yield ctx.shared.get("patched")), (yield ctx.shared.get("kept"))]

    async with app(job(queue="plain")(style(script)), clock=clock) as a, a.workers.background():
        assert await a.jobs.result(await a.enqueue("plain", "write"), timeout=20) == [1, 1, 1]
        a.advance_clock("59s")
        assert await a.jobs.result(await a.enqueue("plain"), timeout=20) == [1, 1, 1]
        a.advance_clock("1s")
        assert await a.jobs.result(await a.enqueue("plain"), timeout=20) == [None, None, 1]
        assert await a.state.list() == {"kept": 1}


async def test_writes_of_a_failed_attempt_leave_nothing(app: Any, style: Style) -> None:
    def script(input: Any, ctx: Any) -> Any:
        seen = yield ctx.state.get("k")
        yield ctx.state.set("k", ctx.attempt)
        yield ctx.state.set(f"only-{ctx.attempt}", True)
        if ctx.attempt < 3:
            raise ValueError("after writing")
        return seen

    async with app(only(style, script, retry=AGAIN)) as a, a.workers.background():
        run = await a.start("only")
        assert await a.result(run, timeout=20) is None
        assert await a.state.of_run(run).list() == {"k": 3, "only-3": True}


async def test_a_patch_is_applied_once_across_attempts(app: Any, style: Style) -> None:
    def script(input: Any, ctx: Any) -> Any:
        first = yield ctx.shared.patch("n", lambda n: (n or 0) + 1)
        second = yield ctx.shared.patch("n", lambda n: n + 10)
        other = yield ctx.state.patch("n", lambda n: (n or 0) + 100)
        if ctx.attempt < 3:
            raise ValueError("after patching")
        return [first, second, other]

    async with app(only(style, script, retry=AGAIN)) as a, a.workers.background():
        run = await a.start("only")
        assert await a.result(run, timeout=20) == [1, 11, 100]
        assert await a.state.get("n") == 11
        assert await a.state.of_run(run).get("n") == 100


async def test_a_patch_is_visible_before_the_attempt_ends(app: Any, style: Style) -> None:
    latch = style.latch()

    def script(input: Any, ctx: Any) -> Any:
        yield ctx.shared.patch("n", lambda n: 1)
        yield latch.wait()

    async with app(only(style, script)) as a, a.workers.background():
        run = await a.start("only")

        async def seen() -> Any:
            return await a.state.get("n")

        assert await until(seen) == 1
        latch.open()
        await a.wait_for_end(run)


async def test_a_key_set_in_this_attempt_cannot_be_patched(app: Any, style: Style) -> None:
    # A patch takes effect at once: it would carry out of a failed attempt what that attempt only set.
    def script(input: Any, ctx: Any) -> Any:
        yield ctx.state.set("k", 10)
        return (yield ctx.state.patch("k", lambda n: n + 1))

    async with app(only(style, script)) as a, a.workers.background():
        run, status = await a.run_to_end("only")
        (failed,) = await a.events_of(run, "step.failed")
        assert (status, failed.data["code"]) == ("failed", "state_conflict")
        assert await a.state.of_run(run).get("k") is None


async def test_patches_identified_by_name(app: Any, style: Style) -> None:
    def script(input: Any, ctx: Any) -> Any:
        if ctx.attempt == 1:
            yield ctx.state.patch("k", lambda n: (n or 0) + 1, name="first")
            raise ValueError("again")
        return (yield ctx.state.patch("k", lambda n: (n or 0) + 10, name="second"))

    async with app(only(style, script, retry=AGAIN)) as a, a.workers.background():
        assert await a.run_for_result("only") == 11


async def test_fifty_concurrent_patches_are_all_applied(app: Any, style: Style) -> None:
    def script(input: Any, ctx: Any) -> Any:
        return (yield ctx.shared.patch("count", lambda n: (n or 0) + 1))

    async with app(job(queue="plain")(style(script)), concurrency=50, threads=50) as a, a.workers.background():
        ids = await a.jobs.enqueue_many("plain", range(50))
        results = [await a.jobs.result(id, timeout=30) for id in ids]
        assert await a.state.get("count") == 50
        assert sorted(results) == list(range(1, 51))


async def test_a_patch_that_raises_changes_nothing(app: Any, style: Style) -> None:
    def broken(_: Any) -> Any:
        raise KeyError("inside")

    def script(input: Any, ctx: Any) -> Any:
        try:
            yield ctx.shared.patch("n", broken)
        except KeyError:
            return (yield ctx.shared.get("n"))

    async with app(only(style, script)) as a, a.workers.background():
        assert await a.run_for_result("only") is None


async def test_outside_a_run_state_is_shared(app: Any, style: Style) -> None:
    def script(input: Any, ctx: Any) -> Any:
        yield ctx.state.set("k", 1)
        return (yield ctx.shared.get("k"))

    async with app(job(queue="plain")(style(script))) as a, a.workers.background():
        assert await a.jobs.result(await a.enqueue("plain"), timeout=20) == 1
        assert await a.state.get("k") == 1


@pytest.mark.parametrize("key", ["", "x" * 501])
async def test_a_bad_state_key_is_refused(memory: Any, style: Style, key: str) -> None:
    def script(input: Any, ctx: Any) -> Any:
        refused = 0
        for call in (
            lambda: ctx.state.get(key),
            lambda: ctx.state.set(key, 1),
            lambda: ctx.state.delete(key),
            lambda: ctx.state.patch(key, lambda n: n),
        ):
            try:
                yield call()
            except ValueError:
                refused += 1
        return refused

    async with memory(only(style, script)) as a, a.workers.background():
        assert await a.run_for_result("only") == 4


# Its span


async def test_the_idempotency_key_is_the_same_for_every_attempt(app: Any, style: Style) -> None:
    keys: list[tuple[str, str]] = []

    def script(input: Any, ctx: Any) -> Any:
        keys.append((ctx.idempotency_key(), ctx.idempotency_key("charge")))
        yield None
        if ctx.attempt < 3:
            raise ValueError("again")

    async with app(only(style, script, retry=AGAIN)) as a, a.workers.background():
        run = await a.start("only")
        await a.wait_for_end(run)
        assert keys == [(f"{run}.script.1", f"{run}.script.1.charge")] * 3


@pytest.mark.spec("001-1.9", "001-0.3")
async def test_attempts_are_counted_from_one(app: Any, style: Style) -> None:
    attempts: list[int] = []

    def script(input: Any, ctx: Any) -> Any:
        attempts.append(ctx.attempt)
        yield None
        if ctx.attempt < 3:
            raise ValueError("again")

    async with app(only(style, script, retry=AGAIN)) as a, a.workers.background():
        run = await a.start("only")
        await a.wait_for_end(run)
        assert attempts == [1, 2, 3]
        assert [e.meta["attempt"] for e in await a.events_of(run, "step.started")] == [1, 2, 3]


async def test_a_ctx_used_after_the_end_raises(app: Any, style: Style) -> None:
    kept: list[Any] = []

    def script(input: Any, ctx: Any) -> Any:
        kept.append(ctx)
        yield None

    async with app(only(style, script)) as a, a.workers.background():
        run, _ = await a.run_to_end("only")
        before = await a.stream(run)
        (ctx,) = kept

        async def use(call: Callable[[], Any]) -> None:
            if style.is_async:
                answer = call()
                if inspect.isawaitable(answer):
                    await answer
            else:
                await asyncio.to_thread(call)

        for call in (
            lambda: ctx.emit("late"),
            lambda: ctx.log("late"),
            lambda: ctx.progress(1),
            lambda: ctx.partial(1),
            lambda: ctx.state.set("late", 1),
            lambda: ctx.state.delete("late"),
            lambda: ctx.state.patch("late", lambda n: 1),
            lambda: ctx.shared.patch("late", lambda n: 1),
        ):
            with pytest.raises(StaleAttempt, match="attempt 1"):
                await use(call)
        assert await a.stream(run) == before
        assert await a.state.list() == {}


async def test_logs_go_to_python_logging_with_run_and_step(
    memory: Any, style: Style, caplog: pytest.LogCaptureFixture
) -> None:
    def script(input: Any, ctx: Any) -> Any:
        yield ctx.log.warning("look")

    async with memory(only(style, script)) as a, a.workers.background():
        run, _ = await a.run_to_end("only")
    (record,) = [r for r in caplog.records if r.name == "penstock.handler"]
    assert (record.getMessage(), record.levelname) == ("look", "WARNING")
    assert (record.run, record.step, record.job, record.attempt) == (run, "script", f"{run}.script.1", 1)  # type: ignore[attr-defined]
