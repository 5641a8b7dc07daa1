"""A FastAPI route that sends a Celery task: `python celery_fastapi.py BROKER_URL` prints its port and serves.

`delay` blocks, so the route is a `def`, which FastAPI runs in a thread, as its documentation recommends."""

from __future__ import annotations

import socket
import sys
from typing import Any

import uvicorn
from celery import Celery
from fastapi import FastAPI
from pydantic import BaseModel

broker = sys.argv[1]
tasks = Celery("bench", broker=broker, backend=broker)
tasks.conf.task_ignore_result = True


@tasks.task(name="noop")
def noop(input: Any) -> None:
    return None


class Start(BaseModel):
    """The body of the request."""

    input: Any = None


site = FastAPI()


@site.post("/api/_flow/noop/runs", status_code=201)
def start(body: Start) -> dict[str, str]:
    return {"id": noop.delay(body.input).id}


if __name__ == "__main__":
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    print(listener.getsockname()[1], flush=True)
    server = uvicorn.Server(uvicorn.Config(site, log_level="warning", access_log=False))
    server.run(sockets=[listener])
