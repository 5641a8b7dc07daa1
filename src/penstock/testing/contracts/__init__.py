"""The contracts every store keeps, as tests. A store's author subclasses one class:

    class TestMyStore(StoreContract):
        async def make_store(self, clock):
            return MyStore(clock=clock)

Needs pytest and pytest-asyncio.
"""

# merged
from .claim import ClaimContract
from .commit import CommitContract
from .dedupe import DedupeContract, HoldContract
from .delivery import DeliveriesContract
from .event_log import EventLogContract
from .feed import FeedContract
from .housekeeping import HousekeepingContract
from .job_trees import FamiliesContract
from .lease import LeaseContract
from .limits import LimitsContract
from .outcomes import OutcomeContract
from .profile import ProfileContract
from .queue_admin import QueueAdminContract
from .refusals import RefusalContract
from .repeats import RepeatContract
from .retention import KeepingContract
from .runs import RunsContract
from .schedules import SchedulesContract
from .search import RunSearchContract
from .signals import SignalsContract
from .state import StateContract
from .subject import StoreUnderTest
from .suspension import PausedRunContract, SleepingContract
from .tail import TailContract
from .waits import WaitsContract


class StoreContract(
    CommitContract,
    RefusalContract,
    RepeatContract,
    OutcomeContract,
    ClaimContract,
    LimitsContract,
    KeepingContract,
    DedupeContract,
    HoldContract,
    LeaseContract,
    WaitsContract,
    SleepingContract,
    PausedRunContract,
    DeliveriesContract,
    RunsContract,
    RunSearchContract,
    EventLogContract,
    TailContract,
    FeedContract,
    SignalsContract,
    QueueAdminContract,
    FamiliesContract,
    SchedulesContract,
    StateContract,
    HousekeepingContract,
    ProfileContract,
):
    """All of them together."""


__all__ = [
    "ClaimContract",
    "CommitContract",
    "DedupeContract",
    "DeliveriesContract",
    "EventLogContract",
    "FamiliesContract",
    "FeedContract",
    "HoldContract",
    "HousekeepingContract",
    "KeepingContract",
    "LeaseContract",
    "LimitsContract",
    "OutcomeContract",
    "PausedRunContract",
    "ProfileContract",
    "QueueAdminContract",
    "RefusalContract",
    "RepeatContract",
    "RunSearchContract",
    "RunsContract",
    "SchedulesContract",
    "SignalsContract",
    "SleepingContract",
    "StateContract",
    "StoreContract",
    "StoreUnderTest",
    "TailContract",
    "WaitsContract",
]
