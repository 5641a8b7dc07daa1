"""The table of commands. Each is imported when it is called, so that `--help` does not wait for all of them."""

from __future__ import annotations

from cyclopts import App

from .. import __version__

_HERE = "penstock.cli"
_HELP = """Durable flows and jobs for Python.

Write steps as plain functions in the folder `workers`, then `penstock run FLOW`."""


def commands() -> App:
    """The command line's parser. It raises what is wrong with a call; `mistakes` shows it."""
    app = App(
        "penstock", help=_HELP, version=__version__, result_action="return_value", exit_on_error=False,
        print_error=False, suppress_keyboard_interrupt=False, help_format="plaintext",
    )  # fmt: skip
    app.command(f"{_HERE}.run:run", name="run", help="Start a run and work on it here, with live progress, until it ends.")
    app.command(f"{_HERE}.start:start", name="start", help="Start a run for a worker to take; prints its id.")
    app.command(f"{_HERE}.worker:worker", name="worker", help="Work on queues until stopped (Ctrl-C or SIGTERM).")
    app.command(f"{_HERE}.runs:runs", name="runs", help="List runs; `runs show ID` shows one with its steps.")
    app.command(f"{_HERE}.events:events", name="events", help="Print the events of a run or of any stream.")
    return app
