"""The contracts of stores, runners and bridges, as tests. To test a store, subclass one class:

    class TestMyStore(StoreContract):
        async def make_store(self, clock):
            return MyStore(clock=clock)

Needs pytest and pytest-asyncio.
"""

from . import assert_rewrite as assert_rewrite  # first: it registers the contracts before they are imported
from .bridge import BridgeContract
from .cancel_jobs import CancelJobsContract
from .change_signals import SignalsContract
from .child_runs import ChildRunsContract
from .claim import ClaimContract
from .commit import CommitContract, ProfileContract
from .dedupe import DedupeContract, QueueHoldContract
from .delivery import DeliveriesContract
from .error_groups import ErrorGroupsContract
from .event_log import EventLogContract, StreamListContract
from .feed import FeedContract
from .housekeeping import HousekeepingContract
from .job_trees import JobTreesContract
from .lease import LeaseContract
from .limits import LimitsContract
from .ordered_keys import OrderedKeysAdminContract, OrderedKeysContract, OrderedKeysFaultContract
from .outcomes import OutcomeContract
from .presence import PresenceContract
from .queue_admin import QueueAdminContract
from .queue_counts import QueueCountsContract
from .queue_keys import QueueKeysContract
from .queue_rates import OldestWaitingContract, QueueRatesContract
from .refused_units import RefusalContract
from .repeats import RepeatContract
from .retention import RetentionContract
from .run_keys import RunKeysContract
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
    RunKeysContract,
    EventLogContract,
    StreamListContract,
    TailContract,
    UnreadableEventsContract,
    FeedContract,
    SignalsContract,
    QueueAdminContract,
    JobTreesContract,
    CancelJobsContract,
    ChildRunsContract,
    SchedulesContract,
    StateContract,
    PresenceContract,
    QueueRatesContract,
    OldestWaitingContract,
    ErrorGroupsContract,
    QueueKeysContract,
    QueueCountsContract,
    HousekeepingContract,
    SweepBatchesContract,
    ProfileContract,
):
    """The complete contract of a store."""


__all__ = [
    "BridgeContract",
    "CancelJobsContract",
    "ChildRunsContract",
    "ClaimContract",
    "CommitContract",
    "DedupeContract",
    "DeliveriesContract",
    "ErrorGroupsContract",
    "EventLogContract",
    "FeedContract",
    "HousekeepingContract",
    "JobTreesContract",
    "LeaseContract",
    "LimitsContract",
    "OldestWaitingContract",
    "OrderedKeysAdminContract",
    "OrderedKeysContract",
    "OrderedKeysFaultContract",
    "OutcomeContract",
    "PausedRunContract",
    "PresenceContract",
    "ProfileContract",
    "QueueAdminContract",
    "QueueCountsContract",
    "QueueHoldContract",
    "QueueKeysContract",
    "QueueRatesContract",
    "RefusalContract",
    "RepeatContract",
    "RetentionContract",
    "RunKeysContract",
    "RunSearchContract",
    "RunnerContract",
    "RunsContract",
    "SchedulesContract",
    "SignalsContract",
    "StateContract",
    "StoreContract",
    "StoreUnderTest",
    "StreamListContract",
    "SuspensionContract",
    "SweepBatchesContract",
    "TailContract",
    "UnreadableEventsContract",
    "WaitsContract",
]
