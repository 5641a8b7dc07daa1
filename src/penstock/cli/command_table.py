"""The table of commands. Each is imported when it is called, which keeps `--help` fast."""

from __future__ import annotations

from typing import NamedTuple

from cyclopts import App, Group

from .. import __version__

_HELP = """Durable flows and jobs for Python.

Write steps as plain functions in the folder 'workers', then 'penstock run FLOW'."""
_START, _RUNS, _QUEUES, _CODE, _STORE = (
    Group(name, sort_key=n)
    for n, name in enumerate(("Start and work", "Runs and events", "Queues and jobs", "Code and settings", "Store"))
)


class Entry(NamedTuple):
    """A line of the help, and where the command is defined."""

    help: str
    group: Group
    target: str = ""  # module:attribute, unless both are named like the command


COMMANDS: dict[str, Entry] = {
    "init": Entry("Create an example project.", _START),
    "dev": Entry("Run a worker and the HTTP API; reload the worker files when they change.", _START),
    "run": Entry("Start a run and work on it here, with live progress, until it ends.", _START),
    "start": Entry("Start a run for a worker; prints its id.", _START),
    "worker": Entry("Work on queues until stopped (Ctrl-C or SIGTERM).", _START),
    "serve": Entry("Serve the HTTP API and the console until stopped", _START),
    "runs": Entry("List runs; show, pause, resume, cancel, retry, replay, fork, bulk.", _RUNS),
    "tail": Entry("Watch a run live, as a timeline of its steps.", _RUNS),
    "events": Entry("Print the events of a run, of any other stream, or of all.", _RUNS),
    "logs": Entry("Print the log lines of a run or a job.", _RUNS),
    "streams": Entry("List the streams of a type, newest first.", _RUNS),
    "waits": Entry("List waits and triggers; resolve and cancel waits; create trigger tokens.", _RUNS),
    "fire": Entry("Fire a trigger by its token; the waiting step resumes.", _RUNS),
    "webhooks": Entry("List webhooks that start flows or emit events; add, remove, receive.", _RUNS),
    "emit": Entry("Emit an event, globally or to one run.", _RUNS),
    "enqueue": Entry("Add a job to a queue; prints its id.", _QUEUES),
    "queues": Entry("List queues with their counts and ages; rates, pause, resume, drain.", _QUEUES),
    "jobs": Entry("List the jobs of a queue; show, retry, remove, promote.", _QUEUES),
    "dlq": Entry("List dead letters; groups, show, redrive, discard.", _QUEUES),
    "workers": Entry("List the workers that are alive: host, queues, busy slots, code.", _QUEUES),
    "schedules": Entry("List schedules; add, pause, resume, remove, next, run now.", _QUEUES),
    "state": Entry("Read and write the state store: get, set, list, delete.", _QUEUES),
    "blobs": Entry("List blobs; put, get, info, url, delete.", _QUEUES),
    "flows": Entry("List the flows in the worker files; 'flows show NAME' shows one.", _CODE),
    "dags": Entry("List dags; register, check, compare, retry; circuit breakers.", _CODE),
    "entities": Entry("List entities; show, emit, history, diagram, types.", _RUNS),
    "diagram": Entry("Draw a flow or a dag as text, Mermaid or SVG.", _CODE),
    "registry": Entry("Print everything found in the worker files, as JSON.", _CODE),
    "check": Entry("Check open runs against the current code, before a deploy.", _CODE),
    "settings": Entry("Print every setting and where its value comes from.", _CODE),
    "doctor": Entry("Run health checks; 'doctor RUN' explains why a run is not moving.", _STORE),
    "alerts": Entry("List alerts that fire; check, rules, history, silence, test.", _STORE),
    "telemetry": Entry("Write the dashboard for Grafana and the alert rules for Prometheus.", _STORE),
    "tokens": Entry("List the tokens of the HTTP API; add, revoke", _STORE),
    "outbox": Entry("Relay work from a table in your own database: create, sql, relay, list, retry.", _STORE),
    "migrate": Entry("Create or update the tables of a Postgres store.", _STORE),
    "export": Entry("Write runs with their events and jobs as JSON lines.", _STORE),
    "import": Entry("Import runs written by 'export', or the backlog of pg-boss.", _STORE, "import_runs:import_"),
    "bench": Entry("Benchmark this machine on a temporary SQLite store.", _STORE),
    "completion": Entry("Print a completion script for bash, zsh or fish.", _CODE),
}


def build_parser(command: str | None = None) -> App:
    """Build the parser of the command line. It raises usage errors; `errors` prints them.

    The help of `command` is its whole docstring; of the others it is the line of the table, for which they need not be
    imported."""
    app = App(
        "penstock", help=_HELP, version=__version__, result_action="return_value", exit_on_error=False,
        print_error=False, suppress_keyboard_interrupt=False, help_format="plaintext",
    )  # fmt: skip
    for order, (name, entry) in enumerate(COMMANDS.items()):
        target = entry.target or f"{name}:{name}"
        help = None if name == command else entry.help
        app.command(f"penstock.cli.commands.{target}", name=name, help=help, group=entry.group, sort_key=order)
    options = Group("Options", sort_key=9)
    for flag in ("--help", "--version"):
        app[flag].group = options
    return app
