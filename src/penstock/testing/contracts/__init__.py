"""The contracts of stores and runners, as tests. To test a store, subclass one class:

    class TestMyStore(StoreContract):
        async def make_store(self, clock):
            return MyStore(clock=clock)

Needs pytest and pytest-asyncio.
"""

from . import assert_rewrite as assert_rewrite  # first: it registers the contracts before they are imported
from .change_signals import SignalsContract
from .claim import ClaimContract
from .commit import CommitContract, ProfileContract
from .dedupe import DedupeContract, QueueHoldContract
from .delivery import DeliveriesContract
from .event_log import EventLogContract
from .feed import FeedContract
from .housekeeping import HousekeepingContract
from .job_trees import JobTreesContract
from .lease import LeaseContract
from .limits import LimitsContract
from .ordered_keys import OrderedKeysAdminContract, OrderedKeysContract, OrderedKeysFaultContract
from .outcomes import OutcomeContract
from .queue_admin import QueueAdminContract
from .refusals import RefusalContract
from .repeats import RepeatContract
from .retention import RetentionContract
from .runner import RunnerContract
from .runs import RunsContract
from .schedules import SchedulesContract
from .search import RunSearchContract
from .state import StateContract
from .store_under_test import StoreUnderTest
from .suspension import PausedRunContract, SuspensionContract
from .sweep_batches import SweepBatchesContract
from .tail import TailContract
from .unreadable import UnreadableEventsContract
from .waits import WaitsContract


class StoreContract(
    CommitContract,
    RefusalContract,
    RepeatContract,
    OutcomeContract,
    ClaimContract,
    LimitsContract,
    RetentionContract,
    DedupeContract,
    QueueHoldContract,
    OrderedKeysContract,
    OrderedKeysAdminContract,
    OrderedKeysFaultContract,
    LeaseContract,
    WaitsContract,
    SuspensionContract,
    PausedRunContract,
    DeliveriesContract,
    RunsContract,
    RunSearchContract,
    EventLogContract,
    TailContract,
    UnreadableEventsContract,
    FeedContract,
    SignalsContract,
    QueueAdminContract,
    JobTreesContract,
    SchedulesContract,
    StateContract,
    HousekeepingContract,
    SweepBatchesContract,
    ProfileContract,
):
    """The complete contract of a store."""


__all__ = [
    "ClaimContract",
    "CommitContract",
    "DedupeContract",
    "DeliveriesContract",
    "EventLogContract",
    "FeedContract",
    "HousekeepingContract",
    "JobTreesContract",
    "LeaseContract",
    "LimitsContract",
    "OrderedKeysAdminContract",
    "OrderedKeysContract",
    "OrderedKeysFaultContract",
    "OutcomeContract",
    "PausedRunContract",
    "ProfileContract",
    "QueueAdminContract",
    "QueueHoldContract",
    "RefusalContract",
    "RepeatContract",
    "RetentionContract",
    "RunSearchContract",
    "RunnerContract",
    "RunsContract",
    "SchedulesContract",
    "SignalsContract",
    "StateContract",
    "StoreContract",
    "StoreUnderTest",
    "SuspensionContract",
    "SweepBatchesContract",
    "TailContract",
    "UnreadableEventsContract",
    "WaitsContract",
]
