"""The handlers of the conversations in tests/vectors/frames.json, for the Python host: `async def` and `def`."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from penstock import AwaitTimeout, Context, SyncContext, job


@job(name="echo")
async def echo(input: Any) -> Any:
    return input


@job(name="notices")
async def notices(input: Any, ctx: Context) -> None:
    ctx.emit("order.paid", {"id": 7})
    ctx.log("charging", cents=5)
    ctx.progress(40)
    ctx.partial("a")
    ctx.state.set("cart", 1)


@job(name="fails")
async def fails(input: Any) -> None:
    raise LookupError("no money left")


@job(name="reads")
async def reads(input: Any, ctx: Context) -> Any:
    return await ctx.state.get("cart")


@job(name="puts")
async def puts(input: Any, ctx: Context) -> Any:
    return (await ctx.blob.put("a.csv", "Zoë")).size


@job(name="gets")
async def gets(input: Any, ctx: Context) -> Any:
    return (await ctx.blob.get("a.csv")).decode()


@job(name="charges")
async def charges(input: int, ctx: Context) -> Any:
    return await ctx.run("charge", lambda: {"charged": input})


@job(name="catches")
async def catches(input: Any, ctx: Context) -> Any:
    try:
        return (await ctx.wait.event("order.paid", timeout="1s")).data
    except AwaitTimeout:
        return "timed out"


@job(name="sleeps")
async def sleeps(input: Any, ctx: Context) -> None:
    try:
        ctx.log("sleeping")
        await asyncio.sleep(60)
    finally:
        ctx.log("stopped")


@job(name="sync-echo")
def sync_echo(input: Any) -> Any:
    return input


@job(name="sync-notices")
def sync_notices(input: Any, ctx: SyncContext) -> None:
    ctx.emit("order.paid", {"id": 7})
    ctx.log("charging", cents=5)
    ctx.progress(40)
    ctx.partial("a")
    ctx.state.set("cart", 1)


@job(name="sync-fails")
def sync_fails(input: Any) -> None:
    raise LookupError("no money left")


@job(name="sync-reads")
def sync_reads(input: Any, ctx: SyncContext) -> Any:
    return ctx.state.get("cart")


@job(name="sync-puts")
def sync_puts(input: Any, ctx: SyncContext) -> Any:
    return ctx.blob.put("a.csv", "Zoë").size


@job(name="sync-gets")
def sync_gets(input: Any, ctx: SyncContext) -> Any:
    return ctx.blob.get("a.csv").decode()


@job(name="sync-charges")
def sync_charges(input: int, ctx: SyncContext) -> Any:
    return ctx.run("charge", lambda: {"charged": input})


@job(name="sync-catches")
def sync_catches(input: Any, ctx: SyncContext) -> Any:
    try:
        return ctx.wait.event("order.paid", timeout="1s").data
    except AwaitTimeout:
        return "timed out"


@job(name="sync-sleeps")
def sync_sleeps(input: Any, ctx: SyncContext) -> None:
    try:
        ctx.log("sleeping")
        for _ in range(6000):  # a cancellation is raised between two bytecodes, not inside a call
            time.sleep(0.01)
    finally:
        ctx.log("stopped")
