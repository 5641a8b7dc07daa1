"""The routes of operators: error groups, bulk actions, dry runs, logs, children, export, slots, rates and streams."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from http_server import Serve
from penstock import App, Context, flow, job, step
from penstock.testing.until import until


@flow("approve")
async def approve(_input: Any, ctx: Context) -> Any:
    waiting = await ctx.wait.trigger("approval")
    return await waiting.wait()


@flow("broken", retry=1)
async def broken(input: Any, ctx: Context) -> None:
    ctx.log.info("first line", n=1)
    ctx.log.error("second line")
    raise ValueError(f"no stock for order {input}")


@flow("parent")
async def parent(_input: Any, ctx: Context) -> None:
    await ctx.start("child", 1)


@flow("child")
async def child(_input: Any) -> None: ...


@job(queue="double", retry=1)
async def double(n: int, ctx: Context) -> int:
    ctx.log.warning("doubling", n=n)
    if n < 0:
        raise ValueError(f"negative: {n}")
    return 2 * n


HANDLERS = [approve, broken, parent, child, double]


async def wait_for_status(app: App, run: str, status: str) -> None:
    async def has_it() -> bool:
        return (await app.runs.get(run)).status == status

    await until(has_it)


async def fail_jobs(app: App, *inputs: int) -> list[str]:
    ids = [await app.enqueue(double, n) for n in inputs]

    async def are_dead() -> bool:
        return await app.dead_letters.count("double") >= len(ids)

    await until(are_dead)
    return ids


def ok(answer: httpx.Response) -> Any:
    assert answer.is_success, answer.text
    return answer.json()


async def test_error_groups_are_listed_sampled_redriven_and_discarded(serve: Serve, url: str) -> None:
    async with App(url, handlers=HANDLERS) as app, serve(app) as client:
        async with app.workers.background():
            await fail_jobs(app, -1, -2, -3)
        (group,) = ok(await client.get("/api/_dlq/groups?queue=double"))
        assert (group["count"], group["error"]) == (3, "ValueError")
        base = f"/api/_dlq/groups/{group['id']}"
        assert ok(await client.get(base)) == group
        sample = ok(await client.get(f"{base}/sample"))
        assert sample["id"] == group["sample"]
        assert sample["letter"]["originalData"] in (-1, -2, -3)
        letters = ok(await client.get(f"/api/_dlq/double/letters?group={group['id']}&limit=2"))
        assert (len(letters["items"]), letters["next"]) == (2, letters["items"][1]["id"])
        assert ok(await client.get("/api/_dlq/double/letters?group=none"))["items"] == []

        assert ok(await client.post(f"{base}/redrive")) == {"matched": 3, "sent": {}, "refused": {}, "removed": 0}
        refused = await client.post(f"{base}/redrive", json={"confirm": 2})
        assert (refused.status_code, refused.json()["error"]["code"]) == (409, "count_changed")
        assert len(ok(await client.post(f"{base}/redrive", json={"confirm": 3, "input": 5}))["sent"]) == 3
        assert (await client.get(base)).status_code == 404
        async with app.workers.background():
            await fail_jobs(app, -7)
        assert ok(await client.post(f"{base}/discard"))["matched"] == 1
        assert ok(await client.post(f"{base}/discard", json={"confirm": 1}))["removed"] == 1
        assert ok(await client.get("/api/_dlq/groups")) == []


async def test_a_queue_of_dead_letters_is_counted_first(serve: Serve, url: str) -> None:
    async with App(url, handlers=HANDLERS) as app, serve(app) as client:
        async with app.workers.background():
            await fail_jobs(app, -1, -2)
        assert ok(await client.post("/api/_dlq/double/redrive"))["sent"] == {}
        assert await app.dead_letters.count("double") == 2
        assert len(ok(await client.post("/api/_dlq/double/redrive", json={"confirm": True, "limit": 1}))["sent"]) == 1
        assert await app.dead_letters.count("double") == 1


async def test_a_dead_letter_is_redriven_with_another_input_after_a_dry_run(serve: Serve, url: str) -> None:
    async with App(url, handlers=HANDLERS) as app, serve(app) as client:
        async with app.workers.background():
            (id,) = await fail_jobs(app, -1)
        plan = ok(await client.post(f"/api/_dlq/letters/{id}/redrive?dryRun", json={"input": 4}))
        assert [one["queue"] for one in plan["preview"]["jobs"]] == ["double"]
        assert await app.dead_letters.count("double") == 1
        (new,) = ok(await client.post(f"/api/_dlq/letters/{id}/redrive", json={"input": 4}))["sent"].values()
        async with app.workers.background():
            assert await app.jobs.result(new, timeout=20) == 8


async def test_runs_are_counted_then_cancelled_in_bulk(serve: Serve, url: str) -> None:
    async with App(url, handlers=HANDLERS) as app, serve(app) as client:
        for n in range(3):
            await app.start(approve, n, key=f"r-{n}", tags={"shop": "a" if n else "b"})
        wanted = {"action": "cancel", "flow": "approve", "tags": {"shop": "a"}, "reason": "recall"}
        counted = ok(await client.post("/api/_run/bulk", json=wanted))
        assert (counted["matched"], counted["changed"]) == (2, [])
        await app.start(approve, 3, key="r-3", tags={"shop": "a"})
        moved = await client.post("/api/_run/bulk", json={**wanted, "confirm": 2})
        assert (moved.status_code, moved.json()["error"]["code"]) == (409, "count_changed")
        assert {(await app.runs.get(f"r-{n}")).status for n in range(4)} <= {"running", "waiting"}
        done = ok(await client.post("/api/_run/bulk", json={**wanted, "confirm": 3}))
        assert sorted(done["changed"]) == ["r-1", "r-2", "r-3"]
        assert (await app.runs.get("r-1")).status == "cancelled"
        assert (await app.runs.get("r-0")).status != "cancelled"
        cut = ok(await client.post("/api/_run/bulk", json={"action": "replay", "flow": "approve", "limit": 2}))
        assert (cut["matched"], cut["more"]) == (2, True)
        assert (await client.post("/api/_run/bulk", json={"action": "cancel"})).status_code == 400


async def test_failed_runs_are_retried_and_replayed_in_bulk(serve: Serve, url: str) -> None:
    async with App(url, handlers=HANDLERS) as app, serve(app) as client:
        async with app.workers.background():
            for n in range(2):
                await app.start(broken, n, key=f"b-{n}")
                await wait_for_status(app, f"b-{n}", "failed")
        words = {"flow": "broken", "error": "no stock", "confirm": True}
        replayed = ok(await client.post("/api/_run/bulk", json={"action": "replay", **words}))
        assert sorted(replayed["started"]) == ["b-0", "b-1"]
        retried = ok(await client.post("/api/_run/bulk", json={"action": "retry", **words}))
        assert sorted(retried["changed"]) == ["b-0", "b-1"]
        assert (await app.runs.get("b-0")).status == "running"


async def test_actions_on_runs_show_first_what_they_would_write(serve: Serve, url: str) -> None:
    async with App(url, handlers=HANDLERS) as app, serve(app) as client:
        await app.start(approve, key="r-1")
        for action, kind in (("cancel", "flow.cancelled"), ("pause", "flow.paused")):
            plan = ok(await client.post(f"/api/_run/r-1/{action}?dryRun"))
            assert [one["kind"] for one in plan["preview"]["events"]] == [kind]
        assert (await app.runs.get("r-1")).status == "running"
        version = plan["preview"]["version"]
        assert ok(await client.post(f"/api/_run/r-1/pause?version={version}")) == {"ok": True}
        moved = await client.post(f"/api/_run/r-1/cancel?version={version}")
        assert (moved.status_code, moved.json()["error"]["code"]) == (409, "run_moved")
        plan = ok(await client.post("/api/_events?dryRun=true", json={"kind": "order.paid"}))
        assert (plan["emitted"], plan["preview"]["events"][0]["kind"]) == (False, "order.paid")
        assert await app.events.read("nq:global") == []


async def test_actions_on_jobs_show_first_what_they_would_write(serve: Serve, url: str) -> None:
    async with App(url, handlers=()) as app, serve(app) as client:
        id = await app.enqueue("mail", 1, delay="1h")
        for method, action, field in (
            ("POST", "/promote", "wokenJobs"),
            ("POST", "/cancel", "cancelledJobs"),
            ("DELETE", "", "removedJobs"),
        ):
            plan = ok(await client.request(method, f"/api/_job/{id}{action}?dryRun"))
            assert (plan["ok"], plan["preview"][field]) == (True, [id])
        assert ok(await client.post(f"/api/_job/{id}/retry?dryRun"))["ok"] is False
        assert (await app.jobs.get(id)).state == "delayed"
        assert ok(await client.post(f"/api/_job/{id}/cancel")) == {"ok": True}
        assert ok(await client.post(f"/api/_job/{id}/retry?dryRun"))["preview"]["wokenJobs"] == [id]
        assert (await app.jobs.get(id)).state == "cancelled"


async def test_log_lines_of_runs_and_jobs(serve: Serve, url: str) -> None:
    async with App(url, handlers=HANDLERS) as app, serve(app) as client, app.workers.background():
        await app.start(broken, 7, key="r-1")
        id = await app.enqueue(double, 4)
        await app.jobs.result(id, timeout=20)
        await wait_for_status(app, "r-1", "failed")
        lines = ok(await client.get("/api/_run/r-1/logs"))
        assert [(one["level"], one["msg"]) for one in lines["items"]] == [
            ("info", "first line"),
            ("error", "second line"),
        ]
        for query, expected in (
            ("level=error", ["second line"]),
            ("step=broken&attempt=1&limit=1", ["first line"]),
            ("step=other", []),
            ("attempt=2", []),
        ):
            page = ok(await client.get(f"/api/_run/r-1/logs?{query}"))
            assert [one["msg"] for one in page["items"]] == expected, query
        page = ok(await client.get("/api/_run/r-1/logs?limit=1"))
        rest = ok(await client.get(f"/api/_run/r-1/logs?after={page['next']}"))
        assert [one["msg"] for one in rest["items"]] == ["second line"]
        (line,) = ok(await client.get(f"/api/_job/{id}/logs"))["items"]
        assert (line["msg"], line["fields"]) == ("doubling", {"n": 4})
        assert (await client.get("/api/_run/none/logs")).status_code == 404


async def test_children_timeline_and_end_of_a_run(serve: Serve, url: str) -> None:
    async with App(url, handlers=HANDLERS) as app, serve(app) as client, app.workers.background():
        await app.start(parent, key="p-1")
        assert ok(await client.get("/api/_run/p-1/wait?timeout=20s"))["status"] == "completed"

        async def has_child() -> bool:
            return bool(await app.runs.children("p-1"))

        await until(has_child)
        (one,) = ok(await client.get("/api/_run/p-1/children"))["items"]
        assert (one["flow"], one["parent"]) == ("child", "p-1")
        assert [row["id"] for row in ok(await client.get("/api/_run?parent=p-1"))["items"]] == [one["id"]]
        page = ok(await client.get("/api/_run/p-1/timeline?limit=2"))
        rest = ok(await client.get(f"/api/_run/p-1/timeline?after={page['next']}"))
        kinds = [event["kind"] for event in (*page["items"], *rest["items"])]
        assert (kinds[0], kinds[-1]) == ("flow.started", "flow.completed")
        assert kinds == [event.kind for event in await app.events.read("nq:flow:p-1")]
        event = page["items"][0]["id"]
        assert ok(await client.get(f"/api/_run/p-1?at={event}"))["status"] == "running"


@pytest.mark.spec("000-10.8", "000-10.9", "000-10.10", "000-15.5")
async def test_runs_of_a_flow_are_found_by_correlation_id(serve: Serve, url: str) -> None:
    async with App(url, handlers=HANDLERS) as app, serve(app) as client:
        await app.start(approve, key="r-1", correlation_id="order-7")
        await app.start(approve, key="r-2")
        found = ok(await client.get("/api/_flow/approve/runs"))["items"]
        assert [one["id"] for one in found] == ["r-2", "r-1"]
        detail = ok(await client.get("/api/_flow/approve/runs/order-7"))
        assert (detail["snapshot"]["id"], detail["snapshot"]["status"]) == ("r-1", "running")
        assert detail["events"][0]["kind"] == "flow.started"
        assert ok(await client.get("/api/_flow/approve/runs/r-2"))["snapshot"]["id"] == "r-2"
        for path in ("/api/_flow/approve/runs/other", "/api/_flow/broken/runs/r-1"):
            assert (await client.get(path)).status_code == 404
        assert ok(await client.post("/api/_flow/approve/runs/order-7/cancel", json={"reason": "sold out"}))["ok"]
        last = (await app.events.read("nq:flow:r-1", backward=True))[0]
        assert (last.kind, last.data["reason"]) == ("flow.cancelled", "sold out")


async def test_a_run_is_exported_and_imported(serve: Serve, tmp_path: Any) -> None:
    first, second = (f"sqlite:///{tmp_path}/{name}.db" for name in ("a", "b"))
    async with App(first, handlers=HANDLERS) as app, serve(app) as client:
        await app.start(approve, {"n": 1}, key="r-1")
        await app.start(approve, {"n": 2}, key="r-2")
        one = await client.get("/api/_run/r-1/export")
        assert one.headers["content-type"] == "application/x-ndjson"
        everything = await client.get("/api/_export")
        assert len(everything.content.splitlines()) == 2
        assert one.content.strip() == await app.runs.export("r-1")
        (audited,) = [e for e in await app.events.read_all("nq:audit:log") if e.data["action"] == "export_run"]
        assert audited.data["path"] == "/api/_run/r-1/export"
        _, viewer = await app.tokens.add("eve", "operator")
        answer = await client.get("/api/_run/r-1/export", headers={"authorization": f"Bearer {viewer}"})
        assert answer.status_code == 403
    async with App(second, handlers=HANDLERS) as app, serve(app) as client:
        assert ok(await client.post("/api/_import", content=everything.content)) == {"ids": ["r-1", "r-2"]}
        assert (await app.runs.get("r-2")).input == {"n": 2}
        assert (await client.post("/api/_import", content=b"{}")).status_code == 400


async def test_open_runs_are_checked_against_the_code(serve: Serve, url: str) -> None:
    async with App(url, handlers=HANDLERS) as app, serve(app) as client:
        await app.start(approve, key="r-1")
        report = ok(await client.post("/api/_preflight", json={"flow": "approve"}))
        assert (report["runs"], report["steps"], report["problems"]) == (1, 1, [])
        assert (await client.post("/api/_preflight", json={"flow": "none"})).status_code == 404


async def test_next_slots_of_a_schedule(serve: Serve, url: str) -> None:
    async with App(url, handlers=HANDLERS) as app, serve(app) as client:
        await app.schedules.add("hourly", queue="double", every="1h", limit=3)
        slots = ok(await client.get("/api/_schedules/hourly/next"))["slots"]
        assert len(slots) == 3
        assert slots[0] == (await app.schedules.get("hourly")).next_at
        assert slots == sorted(set(slots))
        assert len(ok(await client.get("/api/_schedules/hourly/next?count=2"))["slots"]) == 2
        await app.schedules.pause("hourly")
        assert ok(await client.get("/api/_schedules/hourly/next"))["slots"] == []
        assert (await client.get("/api/_schedules/none/next")).status_code == 404
        assert (await client.get("/api/_schedules/hourly/next?count=0")).status_code == 400
        await app.schedules.add("daily", flow="approve", cron="0 9 * * *", tz="Europe/Berlin")
        assert ok(await client.post("/api/_flow/approve/schedules/deactivate")) == {"ids": ["daily"]}
        assert ok(await client.delete("/api/_schedules/hourly")) == {"ok": True}


async def test_rates_and_ages_of_queues(serve: Serve, url: str) -> None:
    async with App(url, handlers=HANDLERS) as app, serve(app) as client:
        await app.enqueue(double, 1)
        await app.enqueue(double, 2)
        minutes = ok(await client.get("/api/_queue/double/rates?since=10m"))
        assert sum(minute["added"] for minute in minutes) == 2
        (queue,) = [one for one in ok(await client.get("/api/_queue")) if one["name"] == "double"]
        assert queue["oldestAt"] is not None
        assert queue["ageMs"] >= 0
        assert (await client.get("/api/_queue/none/rates")).status_code == 404


async def test_jobs_of_several_states_by_name(serve: Serve, url: str) -> None:
    async with App(url, handlers=()) as app, serve(app) as client:
        for n, delay in enumerate((None, None, "1h")):
            await app.enqueue("mail", n, name="welcome" if n else "bye", delay=delay)
        page = ok(await client.get("/api/_queue/mail/jobs?state=waiting&state=delayed&limit=2"))
        rest = ok(await client.get(f"/api/_queue/mail/jobs?state=waiting&state=delayed&after={page['next']}"))
        assert [one["input"] for one in (*page["items"], *rest["items"])] == [0, 1, 2]
        named = ok(await client.get("/api/_queue/mail/jobs?state=waiting&state=delayed&name=welcome"))
        assert [one["input"] for one in named["items"]] == [1, 2]


@pytest.mark.spec("003-11.1", "003-11.2", "000-10.5")
async def test_streams_are_listed_read_and_folded(serve: Serve, url: str) -> None:
    async with App(url, handlers=HANDLERS) as app, serve(app) as client:
        await app.start(approve, key="r-1")
        await app.start(broken, 1, key="r-2")
        listed = ok(await client.get("/api/_events/flow/list"))["items"]
        assert [(one["id"], one["name"], one["status"]) for one in listed] == [
            ("r-2", "broken", "running"),
            ("r-1", "approve", "running"),
        ]
        assert listed[0]["stream"] == "nq:flow:r-2"
        named = ok(await client.get("/api/_events/flow/list?name=approve&limit=1"))
        assert [one["id"] for one in named["items"]] == ["r-1"]
        made = ok(await client.post("/api/_events/webhook/e-1/events", json={"kind": "thing.made", "data": 1}))
        assert made["event"]["kind"] == "thing.made"
        (other,) = ok(await client.get("/api/_events/webhook/list"))["items"]
        assert (other["id"], other["events"]) == ("e-1", 1)
        assert (await client.get("/api/_events/webhook/list?name=x")).status_code == 400
        page = ok(await client.get("/api/_events/nq:flow:r-1?limit=1"))
        assert [one["kind"] for one in page["items"]] == ["flow.started"]
        await app.emit("order.paid")
        for path in ("/api/_events/nq:global", "/api/_events/global/-/events"):
            assert [one["kind"] for one in ok(await client.get(path))["items"]] == ["order.paid"]
        assert (await client.get("/api/_events/other:flow:r-1")).status_code == 400
        assert ok(await client.get("/api/_events/flow/r-1"))["name"] == "approve"
        async with app.workers.background():

            async def is_waiting() -> bool:
                return bool(await app.waits.list())

            await until(is_waiting)
        (wait,) = await app.waits.list()
        assert ok(await client.get(f"/api/_events/trigger/{wait.id}"))["status"] == "registered"


@pytest.mark.spec("000-10.6")
async def test_a_stream_is_tailed_by_its_name(serve: Serve, url: str) -> None:
    async with App(url, handlers=HANDLERS) as app, serve(app) as client:
        await app.start(approve, key="r-1")
        async with client.stream("GET", "/api/_events/nq:flow:r-1/tail") as answer:
            assert answer.headers["content-type"].startswith("text/event-stream")
            lines = answer.aiter_lines()
            assert '"flow.started"' in await find_data(lines)
            await app.runs.cancel("r-1")
            assert '"flow.cancelled"' in await find_data(lines)


async def find_data(lines: Any) -> str:
    async for line in lines:
        if line.startswith("data: {"):
            return str(line)
    raise AssertionError("the stream ended")


async def test_a_webhook_is_read_and_changed_in_part(serve: Serve, url: str) -> None:
    async with App(url, handlers=HANDLERS) as app, serve(app) as client:
        ok(await client.put("/api/_webhooks/shop/orders", json={"flow": "approve", "method": ["PATCH", "POST"]}))
        changed = ok(await client.patch("/api/_webhooks/shop/orders", json={"event": "order.made"}))
        assert (changed["event"], changed.get("flow"), changed["methods"]) == ("order.made", None, ["PATCH", "POST"])
        assert ok(await client.get("/api/_webhooks/shop/orders")) == changed
        receipt = ok(await client.patch("/api/webhooks/shop/orders", json={"n": 1}))
        assert receipt["isNew"]
        assert [event.kind for event in await app.events.read("nq:global")] == ["order.made"]
        assert (await client.patch("/api/_webhooks/none", json={})).status_code == 404


@pytest.mark.spec("000-10.2")
async def test_a_handler_is_executed_and_its_result_returned(serve: Serve, url: str) -> None:
    async with App(url, handlers=HANDLERS) as app, serve(app) as client:
        late = await client.post("/api/_runner/execute", json={"queue": "double", "input": 4, "timeout": "10ms"})
        assert late.status_code == 504
        async with app.workers.background():
            done = ok(await client.post("/api/_runner/execute", json={"queue": "double", "input": 4, "key": "j-1"}))
            assert done == {"id": "j-1", "result": 8}
            bad = await client.post("/api/_runner/execute", json={"queue": "double", "input": -4})
            assert (bad.status_code, bad.json()["error"]["code"]) == (409, "run_failed")


@pytest.mark.spec("003-7.9", "003-11.4", "003-11.5")
@pytest.mark.parametrize("path", ["/api/triggers", "/api/_triggers", "/api/_flows/triggers"])
async def test_a_trigger_is_fired_by_its_address(serve: Serve, url: str, path: str) -> None:
    async with (
        App(url, handlers=HANDLERS, public_url="https://shop.example") as app,
        serve(app) as client,
        app.workers.background(),
    ):
        await app.start(approve, key="r-1")

        async def is_waiting() -> bool:
            return bool(await app.waits.list())

        await until(is_waiting)
        (wait,) = await app.waits.list()
        made = ok(await client.post(f"/api/_waits/{wait.id}/token"))
        token = made["token"]
        assert made["url"] == f"https://shop.example/api/triggers/{token}"
        await app.tokens.add("ada", "admin")  # from here on every other path needs a token
        assert ok(await client.post(f"{path}/{token}", json={"approved": True})) == {"run": "r-1"}
        assert await app.result("r-1", timeout=20) == {"approved": True}
        again = await client.post(f"{path}/{token}", json={"approved": False})
        assert (again.status_code, again.json()["error"]["code"]) == (409, "trigger_used")


@pytest.mark.spec("000-4.1.14", "000-10.1")
async def test_the_operations_of_a_queue(serve: Serve, url: str) -> None:
    async with App(url, handlers=HANDLERS) as app, serve(app) as client:
        id = ok(await client.post("/api/_queue/double/jobs", json={"input": 1, "priority": 3}))["id"]
        ids = ok(await client.post("/api/_queue/double/jobs/bulk", json={"inputs": [2, 3]}))["ids"]
        jobs = ok(await client.get("/api/_queue/double/jobs"))["items"]
        assert {one["id"] for one in jobs} == {id, *ids}
        assert ok(await client.get(f"/api/_job/{id}"))["priority"] == 3
        assert ok(await client.post("/api/_queue/double/pause"))["paused"] is True
        assert ok(await client.post("/api/_queue/double/resume"))["paused"] is False
        late = ok(await client.post("/api/_queue/double/jobs", json={"input": 4, "delay": "1h"}))["id"]
        assert ok(await client.post(f"/api/_job/{late}/promote")) == {"ok": True}
        assert ok(await client.delete(f"/api/_job/{late}")) == {"ok": True}
        async with app.workers.background():
            assert ok(await client.get(f"/api/_job/{id}/result?timeout=20s")) == {"result": 2}
            tree = {
                "name": "double",
                "queueName": "double",
                "data": 1,
                "children": [{"name": "double", "queueName": "double", "data": 2}],
            }
            made = ok(await client.post("/api/_job/tree", json={"tree": tree}))
            ok(await client.get(f"/api/_job/{made['id']}/result?timeout=20s"))
            assert ok(await client.get(f"/api/_job/{made['id']}/children/counts"))["processed"] == 1
        assert ok(await client.get("/api/_queue/double"))["counts"]["completed"] >= 3
        assert ok(await client.post("/api/_queue/double/drain")) == {"removed": 0}


@pytest.mark.spec("000-10.7", "002-8.9")
async def test_flows_with_their_steps_and_the_health_of_the_server(serve: Serve) -> None:
    async with App(":memory:", handlers=HANDLERS) as app, serve(app) as client:
        flows = {one["id"]: one for one in ok(await client.get("/api/_flow"))}
        assert set(flows) == {"approve", "broken", "parent", "child"}
        assert list(flows["approve"]["steps"]) == ["approve"]
        assert ok(await client.get("/api/_flow/approve")) == flows["approve"]
        assert (await client.get("/api/_flow/none")).status_code == 404
        assert ok(await client.get("/health"))["status"] == "ok"
        assert ok(await client.get("/ready"))["status"] == "ok"


@flow("chain", emits=["chain.next"])
async def chain(_input: Any, ctx: Context) -> None:
    await ctx.wait.event("go.on")
    ctx.emit("chain.next")


@step(on="chain.next", flow="chain")
async def later(_input: Any) -> None: ...


@pytest.mark.spec("000-16.17")
async def test_a_cancelled_flow_starts_nothing_more(serve: Serve, url: str) -> None:
    async with App(url, handlers=[chain, later]) as app, serve(app) as client, app.workers.background():
        await app.start("chain", key="r-1")

        async def is_waiting() -> bool:
            return bool(await app.waits.list())

        await until(is_waiting)
        assert ok(await client.post("/api/_flow/chain/runs/r-1/cancel"))["ok"]
        await app.emit("go.on")
        events = [event.kind for event in await app.events.read("nq:flow:r-1")]
        assert events[-1] == "flow.cancelled"
        assert not [event for event in await app.events.read("nq:flow:r-1") if event.step == "later"]
