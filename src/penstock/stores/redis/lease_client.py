"""A blocking client for the thread that renews leases, so that a busy event loop cannot delay a renewal."""

from __future__ import annotations

import threading
from typing import Any

import hiredis
from redis import Redis, RedisError
from redis.backoff import NoBackoff
from redis.exceptions import MovedError, NoScriptError, ReadOnlyError
from redis.retry import Retry

from ...core.errors import StoreUnavailable
from .address import Host
from .resp import translate_client_error
from .scripts import Script
from .sentinels import find_master_blocking
from .topology import Topology, is_replica

RENEW_TIMEOUT_S = 10.0


class LeaseClient:
    """Runs one script at a time, from any thread."""

    def __init__(self, topology: Topology, name: str) -> None:
        self._topology = topology
        self._name = name
        self._lock = threading.Lock()
        self._client: Redis | None = None
        self._peer: Host = ("", 0)
        self._is_stale = False

    def evaluate(self, script: Script, parts: list[Any]) -> Any:
        """Run a script; send its text if the server does not have it."""
        with self._lock:
            try:
                try:
                    return self._evaluate(script, parts)
                except MovedError as moved:
                    self._topology.follow_move(hiredis.ReplyError(f"MOVED {moved}"), self._peer)
                    self._drop()
                    return self._evaluate(script, parts)
            except (RedisError, OSError, ValueError, OverflowError) as problem:
                # ValueError: a reply or an address that redis-py cannot read.
                found = translate_client_error(problem, str(self._topology))
                if isinstance(found, StoreUnavailable) or isinstance(problem, ReadOnlyError):
                    self._drop()  # the next call finds the server again
                raise found from None

    def _evaluate(self, script: Script, parts: list[Any]) -> Any:
        client = self._connected()
        try:
            return client.evalsha(script.sha, *parts)
        except NoScriptError:
            return client.eval(script.text, *parts)

    def reconnect(self) -> None:
        """Use a new connection for the next call, without waiting for the current one."""
        self._is_stale = True

    def close(self) -> None:
        with self._lock:
            self._drop()

    def _connected(self) -> Redis:
        if self._is_stale:
            self._is_stale = False
            self._drop()
        if self._client is None:
            self._client = self._connect()
        return self._client

    def _connect(self) -> Redis:
        if self._topology.address.master:
            return self._connect_to(find_master_blocking(self._topology.address))
        *others, last = self._topology.candidates()
        for host in others:
            try:
                return self._connect_to(host)
            except (RedisError, OSError):
                self._topology.forget_node()
        return self._connect_to(last)

    def _connect_to(self, host: Host) -> Redis:
        options = self._topology.client_options(self._name, RENEW_TIMEOUT_S)
        client = Redis(host=host[0], port=host[1], max_connections=1, retry=Retry(NoBackoff(), 0), **options)
        try:
            if self._topology.address.master and is_replica(client.role()):
                raise ConnectionError(f"{host[0]}:{host[1]} is not the master any more; the new one renews the leases")
            client.ping()
        except BaseException:
            client.close()
            raise
        self._peer = host
        return client

    def _drop(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None
