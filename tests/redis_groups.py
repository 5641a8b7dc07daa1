"""Groups of Redis servers: a master with a replica and sentinels, or a cluster."""

from __future__ import annotations

import secrets
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from redis_server import Server, binary, free_port

SLOTS = 16384
NAME = "main"


class Sentinel:
    """A sentinel process that monitors a master."""

    def __init__(self, folder: Path, master: Server, quorum: int) -> None:
        self.port = free_port()
        folder.mkdir()
        config = folder / "sentinel.conf"  # the sentinel rewrites it
        config.write_text(
            f"port {self.port}\nbind 127.0.0.1\ndir {folder}\n"
            f"sentinel monitor {NAME} 127.0.0.1 {master.port} {quorum}\n"
            f"sentinel down-after-milliseconds {NAME} 700\n"
            f"sentinel failover-timeout {NAME} 3000\n"
        )
        with (folder / "sentinel.log").open("ab") as log:
            self.process = subprocess.Popen([binary(), str(config), "--sentinel"], stdout=log, stderr=log)

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()


class SentinelGroup:
    """A master, a replica, and three sentinels with a quorum of two."""

    def __init__(self, folder: Path) -> None:
        self.servers = [_start_server(folder / "a")]
        self.servers.append(_start_server(folder / "b", "--replicaof", "127.0.0.1", str(self.servers[0].port)))
        _wait(lambda: b"state=online" in self.servers[0].command("INFO", "replication"), "a replica")
        self.sentinels = [Sentinel(folder / f"s{n}", self.servers[0], 2) for n in range(3)]
        _wait(lambda: all(map(_ready, self.sentinels)), "sentinels that know each other and the replica")

    def url(self) -> str:
        hosts = ",".join(f"127.0.0.1:{sentinel.port}" for sentinel in self.sentinels)
        return f"redis+sentinel://{hosts}/{NAME}/0"

    def master(self) -> int:
        """Return the index of the server that the first sentinel names as master."""
        reply = ask(self.sentinels[0].port, "SENTINEL", "get-master-addr-by-name", NAME)
        return [str(server.port).encode() in reply for server in self.servers].index(True)

    def is_stable(self) -> bool:
        """Return whether the other server replicates the master, so that the next failover can start."""
        reply = ask(self.servers[self.master()].port, "INFO", "replication")
        return b"role:master" in reply and b"state=online" in reply and all(map(_ready, self.sentinels))

    def stop(self) -> None:
        for one in self.sentinels:
            one.stop()
        for server in self.servers:
            server.kill()


def _start_server(folder: Path, *options: str) -> Server:
    folder.mkdir()
    return Server(folder, "--repl-diskless-sync", "yes", "--repl-diskless-sync-delay", "0", *options)


def _ready(sentinel: Sentinel) -> bool:
    reply = ask(sentinel.port, "SENTINEL", "master", NAME).split(b"\r\n")
    facts = dict(zip(reply[2::4], reply[4::4], strict=False))
    return facts.get(b"num-slaves") == b"1" and facts.get(b"num-other-sentinels") == b"2"


def ask(port: int, *parts: str) -> bytes:
    """Send a command to a port and return the start of the reply."""
    words = "".join(f"${len(part)}\r\n{part}\r\n" for part in parts)
    try:
        with socket.create_connection(("127.0.0.1", port), 10) as line:
            line.sendall(f"*{len(parts)}\r\n{words}".encode())
            return line.recv(65536)
    except OSError:
        return b""


@contextmanager
def cluster(size: int = 3, *, replicas: bool = False) -> Iterator[list[Server]]:
    """Start masters that share the slots; with `replicas`, a replica of each follows in the list."""
    folder = Path(tempfile.mkdtemp(prefix="penstock-cluster-"))
    servers: list[Server] = []
    try:
        for n in range(size * 2 if replicas else size):
            (folder / str(n)).mkdir()
            port = _port()
            options = ("--cluster-enabled", "yes", "--cluster-node-timeout", "1000", "--repl-diskless-sync-delay", "0")
            servers.append(Server(folder / str(n), *options, port=port))
        _join(servers[:size])
        _replicate(servers[:size], servers[size:])
        yield servers
    finally:
        for server in servers:
            server.kill()
        shutil.rmtree(folder, ignore_errors=True)


def _port() -> int:
    """Return a port that is free, with its cluster bus port, 10,000 higher: both below those that the system gives out."""
    while True:
        port = 20_000 + secrets.randbelow(2700)
        if _is_free(port) and _is_free(port + 10_000):
            return port


def _is_free(port: int) -> bool:
    with socket.socket() as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            one.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def _join(servers: list[Server]) -> None:
    for n, server in enumerate(servers):
        first, after = SLOTS * n // len(servers), SLOTS * (n + 1) // len(servers)
        assert server.command("CLUSTER", "ADDSLOTS", *map(str, range(first, after))) == b"+OK\r\n"
        server.command("CLUSTER", "SET-CONFIG-EPOCH", str(n + 1))
        if n:
            server.command("CLUSTER", "MEET", "127.0.0.1", str(servers[0].port))
    _wait(lambda: all(b"cluster_state:ok" in s.command("CLUSTER", "INFO") for s in servers), "a cluster")


def _replicate(masters: list[Server], replicas: list[Server]) -> None:
    for master, replica in zip(masters, replicas, strict=False):
        name = master.command("CLUSTER", "MYID").split(b"\r\n")[1].decode()
        replica.command("CLUSTER", "MEET", "127.0.0.1", str(master.port))
        _wait(
            lambda name=name, replica=replica: replica.command("CLUSTER", "REPLICATE", name) == b"+OK\r\n", "a master"
        )
    for master, _ in zip(masters, replicas, strict=False):
        _wait(lambda master=master: b"state=online" in master.command("INFO", "replication"), "a replica")
    servers = [*masters, *replicas]
    _wait(lambda: all(_knows_all(server, len(servers)) for server in servers), "servers that know each other")


def _knows_all(server: Server, count: int) -> bool:
    reply = server.command("CLUSTER", "INFO")
    return b"cluster_state:ok" in reply and f"cluster_known_nodes:{count}".encode() in reply


def _wait(condition: Callable[[], bool], what: str) -> None:
    for _ in range(1500):
        if condition():
            return
        time.sleep(0.02)
    raise AssertionError(f"waited 30 s for {what}")
