"""The table of commands. Each is imported when it is called, so that `--help` does not wait for all of them."""

from __future__ import annotations

from typing import NamedTuple

from cyclopts import App, Group

from .. import __version__

_HELP = """Durable flows and jobs for Python.

Write steps as plain functions in the folder 'workers', then 'penstock run FLOW'."""
_WORK, _RUNS, _QUEUES, _CODE, _STORE = (
    Group(name, sort_key=n)
    for n, name in enumerate(("Begin and work", "Runs", "Queues and jobs", "The code", "The store"))
)


class Entry(NamedTuple):
    """A line of the help, and where the command is."""

    help: str
    group: Group
    place: str = ""  # module:attribute, if they are not named like the command


COMMANDS: dict[str, Entry] = {
    "init": Entry("Make a project to start from.", _WORK),
    "dev": Entry("Work, and load the worker files anew whenever one changes.", _WORK),
    "run": Entry("Start a run and work on it here, shown live, until it ends.", _WORK),
    "start": Entry("Start a run for a worker to take; prints its id.", _WORK),
    "worker": Entry("Work on queues until stopped (Ctrl-C or SIGTERM).", _WORK),
    "runs": Entry("List runs; 'runs show ID' shows one; pause, resume, cancel, retry, replay, fork.", _RUNS),
    "tail": Entry("Watch a run live, as a timeline of its steps.", _RUNS),
    "events": Entry("Print the events of a run or of any stream.", _RUNS),
    "waits": Entry("List what runs wait for.", _RUNS),
    "fire": Entry("Fire a trigger by its token; the step that waits for it goes on.", _RUNS),
    "emit": Entry("Say that something happened, to a run or to everyone.", _RUNS),
    "enqueue": Entry("Add a plain job for a worker to take; prints its id.", _QUEUES),
    "queues": Entry("List queues with their counts; pause, resume, drain.", _QUEUES),
    "jobs": Entry("List the jobs of a queue; show, retry, remove, promote.", _QUEUES),
    "dlq": Entry("List dead letters; show, redrive, discard.", _QUEUES),
    "schedules": Entry("List schedules; add, pause, resume, remove, run now.", _QUEUES),
    "state": Entry("Read and write the state store; get, set, list, delete.", _QUEUES),
    "flows": Entry("List the flows of the worker files; 'flows show NAME' shows one.", _CODE),
    "diagram": Entry("Draw a flow as text, Mermaid or SVG.", _CODE),
    "registry": Entry("Print all that was found in the worker files, as JSON.", _CODE),
    "check": Entry("Say which open runs the present code could not go on with.", _CODE),
    "settings": Entry("Print every setting, and where its value came from.", _CODE),
    "doctor": Entry("Look for what is wrong; 'doctor RUN' says why a run is not moving.", _STORE),
    "outbox": Entry("The table by which your transactions reach a store elsewhere; create, sql, relay.", _STORE),
    "migrate": Entry("Create or update the tables of a Postgres store.", _STORE),
    "export": Entry("Write runs with their events and jobs as lines of JSON.", _STORE),
    "import": Entry(
        "Read runs that 'export' has written into a store, or what waits in a pg-boss.", _STORE, "importing:import_"
    ),
    "bench": Entry("Measure this machine on a store that is removed afterwards.", _STORE),
    "completion": Entry("Print the shell's completion script: bash, zsh or fish.", _CODE),
}


def commands() -> App:
    """The command line's parser. It raises what is wrong with a call; `mistakes` shows it."""
    app = App(
        "penstock", help=_HELP, version=__version__, result_action="return_value", exit_on_error=False,
        print_error=False, suppress_keyboard_interrupt=False, help_format="plaintext",
    )  # fmt: skip
    for order, (name, entry) in enumerate(COMMANDS.items()):
        place = entry.place or f"{name}:{name}"
        app.command(f"penstock.cli.{place}", name=name, help=entry.help, group=entry.group, sort_key=order)
    options = Group("Options", sort_key=9)
    for flag in ("--help", "--version"):
        app[flag].group = options
    return app
