"""Three orders, shown live: one goes well, one cannot be delivered, one survives the death of its worker.

python examples/shop/demo.py
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
from contextlib import aclosing
from pathlib import Path
from typing import Any

from rich.console import Console

from penstock import App
from penstock.cli.live import resume_hint, work_and_watch
from penstock.cli.run_view import render_text

HERE = Path(__file__).resolve().parent
WORKERS = HERE / "workers"
STORE = Path(os.environ.get("SHOP_STORE") or HERE / ".penstock" / "shop.db").resolve()
URL = f"sqlite:///{STORE}"
SHOWN_URL = f"--url sqlite:///{os.path.relpath(STORE)}"
PLACE = f" --dir {os.path.relpath(WORKERS)} {SHOWN_URL}"
LEASE = "1s"  # short, so that nobody waits long for a dead worker
LINES = [
    {"sku": "lamp", "quantity": 2, "price": 1900},
    {"sku": "bulb", "quantity": 4, "price": 450},
    {"sku": "cable", "quantity": 1, "price": 700},
]


async def main() -> int:
    console = Console()
    async with App(URL, WORKERS, lease=LEASE) as app:
        console.rule("An order. The payment provider answers at the third attempt.", align="left")
        good = await order(app, console, "order-1001", customer="Ada")

        console.rule("An address no carrier goes to: what was done is undone, last first.", align="left")
        undone = await order(app, console, "order-1002", customer="Grace", deliverable=False)

        console.rule("A worker is killed while it ships. Another one takes over.", align="left")
        id = await start(app, "order-1003", customer="Barbara")
        await kill_a_worker(app, id, console)
        recovered = await watched(app, console, id)
        show_next_commands(console)
        await show_console(app, console)
    return 0 if (good, undone, recovered) == ("completed", "compensated", "completed") else 1


async def order(app: App, console: Console, id: str, **rest: Any) -> str:
    return await watched(app, console, await start(app, id, **rest))


async def start(app: App, id: str, **rest: Any) -> str:
    return await app.start("shop", {"id": id, "lines": LINES, **rest}, key=id)


async def watched(app: App, console: Console, id: str) -> str:
    """Works on a run in this process and draws it; gives how it ended."""
    view = await work_and_watch(app, "shop", id, console, flags=PLACE)
    if view.completed_at is None:
        sys.exit(resume_hint("shop", id, PLACE))
    if not console.is_terminal:
        print(render_text(view, app.clock.now_ms()))
    print()
    return view.status


async def kill_a_worker(app: App, id: str, console: Console) -> None:
    """Starts a worker of its own process and kills it in the middle of `ship`: no goodbye, nothing cleaned up."""
    command = [sys.executable, "-m", "penstock.cli", "worker", "--dir", str(WORKERS), "--url", URL]
    env = {**os.environ, "PENSTOCK_LEASE": LEASE}
    worker = await asyncio.create_subprocess_exec(*command, env=env, stdout=asyncio.subprocess.DEVNULL)
    try:
        async with asyncio.timeout(60), aclosing(app.runs.follow(id)) as events:
            async for event in events:
                if event.kind == "step.progress" and event.step == "ship":
                    break
    finally:
        worker.kill()
        await worker.wait()
    console.print(f"Worker {worker.pid} was killed in the middle of ship. Its lease runs out in {LEASE}.", style="red")


def show_next_commands(console: Console) -> None:
    console.print("The runs are kept. Try next, in the folder you are in:", style="bold")
    for command in ("runs", "runs show order-1002", "events order-1003"):
        console.print(f"  {penstock_command()} {command} {SHOWN_URL}", soft_wrap=True, highlight=False)


async def show_console(app: App, console: Console) -> None:
    """Serve the runs in the web console until Ctrl-C. Without a terminal, or where it cannot be built, print why."""
    if not console.is_terminal:
        console.print("In a terminal, the demo ends by serving these runs in the web console.")
        return
    try:
        build_console()
        from penstock.http import asgi_app
        from penstock.http.server import Server, bind
    except Exception as problem:  # no Node, no registry, no extra `http`: the demo worked all the same
        console.print(f"The web console is not available here: {problem}", soft_wrap=True, highlight=False)
        return
    with bind("127.0.0.1", 0) as listener:
        address = f"http://127.0.0.1:{listener.getsockname()[1]}/console/"
        console.print(f"\nThe runs in the web console: {address}  Stop with Ctrl-C.", style="bold", highlight=False)
        server = Server(asgi_app(app), listener)
        asyncio.get_running_loop().add_signal_handler(signal.SIGINT, server.stop)
        async with app.workers.background():  # what is replayed or retried in the console runs here
            await server.run()


def build_console() -> None:
    """Build the console of this checkout, if it is one; an installed package contains it."""
    folder = HERE.parents[1] / "console"
    if folder.exists():
        sys.path.insert(0, str(folder))
        import build

        print("Building the web console (a minute the first time) ...")
        build.publish()


def penstock_command() -> str:
    """Return what to type for this very Python's `penstock`; another one on PATH may be of another version."""
    ours = Path(sys.executable).with_name("penstock")
    on_path = shutil.which("penstock")
    if on_path and ours.exists() and Path(on_path).samefile(ours):
        return "penstock"
    return os.path.relpath(ours) if ours.exists() else f"{os.path.relpath(sys.executable)} -m penstock.cli"


def forget_the_last_demo() -> None:
    for end in ("", "-wal", "-shm"):
        Path(f"{STORE}{end}").unlink(missing_ok=True)


if __name__ == "__main__":
    forget_the_last_demo()
    sys.exit(asyncio.run(main()))
