"""What the parts of control share: namespace, settings, tiers' states, jobs, staging and time. Has no behaviour."""

from collections.abc import Sequence
from dataclasses import dataclass

from kvist.base.clock import Calendar, Clock
from kvist.blocks.keys import Namespace
from kvist.fabric.dispatch import Dispatch
from kvist.fabric.messages import TierName
from kvist.fabric.parcels import Parcels
from kvist.fabric.settings import FabricSettings
from kvist.fabric.tier_state import TierState


@dataclass(slots=True, kw_only=True, eq=False)
class Desk:
    """Shared by the parts of one control, all of which are called under its lock.

    Attributes:
        namespace: under which everything is asked and stored from now on; all else here stays what it is.
        tiers: fastest first.
        by_name: the same.
        record_bytes: by group, header included.
    """

    namespace: Namespace
    settings: FabricSettings
    tiers: Sequence[TierState]
    by_name: dict[TierName, TierState]
    dispatch: Dispatch
    parcels: Parcels
    record_bytes: Sequence[int]
    clock: Clock
    calendar: Calendar

    @property
    def store_bytes_max(self) -> int:
        """Most of staging that what is to be stored may take."""
        return int(self.settings.staging_bytes * self.settings.store_share)
