"""A Kafka broker for the tests: the one inside librdkafka, with the real protocol on loopback.

`confluent-kafka` starts one with `test.mock.num.brokers`, but has no call to stop a broker or to make a topic. Its library has
them, so it is called directly. Set PENSTOCK_TEST_KAFKA to the addresses of a real cluster to run the tests on that one.
"""

from __future__ import annotations

import ctypes
import os
from functools import cache
from pathlib import Path
from typing import Any

REAL = os.environ.get("PENSTOCK_TEST_KAFKA")


@cache
def _library() -> Any:
    import confluent_kafka

    folder = Path(confluent_kafka.__file__).parents[1] / "confluent_kafka.libs"
    library = ctypes.CDLL(str(next(folder.glob("librdkafka*.so*"))))
    for name, result, arguments in (
        ("rd_kafka_conf_new", ctypes.c_void_p, ()),
        ("rd_kafka_new", ctypes.c_void_p, (ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t)),
        ("rd_kafka_mock_cluster_new", ctypes.c_void_p, (ctypes.c_void_p, ctypes.c_int)),
        ("rd_kafka_mock_cluster_destroy", None, (ctypes.c_void_p,)),
        ("rd_kafka_mock_cluster_bootstraps", ctypes.c_char_p, (ctypes.c_void_p,)),
        ("rd_kafka_mock_topic_create", ctypes.c_int, (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int, ctypes.c_int)),
        ("rd_kafka_mock_broker_set_down", ctypes.c_int, (ctypes.c_void_p, ctypes.c_int32)),
        ("rd_kafka_mock_broker_set_up", ctypes.c_int, (ctypes.c_void_p, ctypes.c_int32)),
        ("rd_kafka_mock_group_initial_rebalance_delay_ms", None, (ctypes.c_void_p, ctypes.c_int32)),
        ("rd_kafka_destroy", None, (ctypes.c_void_p,)),
    ):
        call = getattr(library, name)
        call.restype, call.argtypes = result, list(arguments)
    return library


class RealCluster:
    """A cluster that runs already."""

    address = REAL or ""

    def create(self, topic: str, partitions: int = 1) -> None:
        from confluent_kafka.admin import AdminClient, NewTopic

        made = AdminClient({"bootstrap.servers": self.address}).create_topics([NewTopic(topic, partitions)])
        made[topic].result(30)

    def stop(self) -> None:
        """Leave it running."""


class Broker:
    """One broker that can be taken down and comes back with its records."""

    def __init__(self) -> None:
        self._library = _library()
        why = ctypes.create_string_buffer(512)
        producer = 0
        self._handle = self._library.rd_kafka_new(producer, self._library.rd_kafka_conf_new(), why, len(why))
        assert self._handle, why.value
        self._cluster = self._library.rd_kafka_mock_cluster_new(self._handle, 1)
        self._library.rd_kafka_mock_group_initial_rebalance_delay_ms(self._cluster, 0)

    @property
    def address(self) -> str:
        return str(self._library.rd_kafka_mock_cluster_bootstraps(self._cluster).decode())

    def create(self, topic: str, partitions: int = 1) -> None:
        assert self._library.rd_kafka_mock_topic_create(self._cluster, topic.encode(), partitions, 1) == 0

    def take_down(self) -> None:
        assert self._library.rd_kafka_mock_broker_set_down(self._cluster, 1) == 0

    def bring_up(self) -> None:
        assert self._library.rd_kafka_mock_broker_set_up(self._cluster, 1) == 0

    def stop(self) -> None:
        self._library.rd_kafka_mock_cluster_destroy(self._cluster)
        self._library.rd_kafka_destroy(self._handle)


def make_broker() -> Broker | RealCluster:
    """Return a new broker, or the cluster in PENSTOCK_TEST_KAFKA."""
    return RealCluster() if REAL else Broker()
