"""The table of commands. Each is imported when it is called, so that `--help` does not wait for all of them."""

from __future__ import annotations

from cyclopts import App

from .. import __version__

_HELP = """Durable flows and jobs for Python.

Write steps as plain functions in the folder 'workers', then 'penstock run FLOW'."""
COMMANDS = {
    "run": "Start a run and work on it here, shown live, until it ends.",
    "start": "Start a run for a worker to take; prints its id.",
    "worker": "Work on queues until stopped (Ctrl-C or SIGTERM).",
    "runs": "List runs; 'runs show ID' shows one with its steps.",
    "events": "Print the events of a run or of any stream.",
}


def commands() -> App:
    """The command line's parser. It raises what is wrong with a call; `mistakes` shows it."""
    app = App(
        "penstock", help=_HELP, version=__version__, result_action="return_value", exit_on_error=False,
        print_error=False, suppress_keyboard_interrupt=False, help_format="plaintext",
    )  # fmt: skip
    for name, help in COMMANDS.items():
        app.command(f"penstock.cli.{name}:{name}", name=name, help=help)
    return app
