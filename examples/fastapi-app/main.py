"""A web app that starts runs and streams a long answer to the browser. Run it with: uvicorn main:web"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from fastapi import FastAPI
from fastapi.responses import FileResponse
from pydantic import BaseModel

from penstock import App
from penstock.http import asgi_app

HERE = Path(__file__).parent
app = App(dir=HERE / "workers")


@asynccontextmanager
async def lifespan(_web: FastAPI) -> AsyncIterator[None]:
    """Open the App with the web app, and run a worker in the same process."""
    async with app, app.workers.background():
        yield


web = FastAPI(lifespan=lifespan)


class Question(BaseModel):
    """What the user asks."""

    text: str


@web.post("/ask")
async def ask(question: Question) -> dict[str, str]:
    """Start a run and return its id; the page follows it."""
    return {"run": await app.start("answer", question.text)}


@web.get("/")
async def page() -> FileResponse:
    """Serve the page."""
    return FileResponse(HERE / "page.html")


# Everything else of Penstock, its event streams included, under /penstock.
web.mount("/penstock", asgi_app(app))
