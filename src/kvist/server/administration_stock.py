"""What a running fabric's tiers hold, in the words of an operator's verbs."""

from collections.abc import Sequence

from kvist.blocks.keys import TenantTag
from kvist.fabric.administration import Administration
from kvist.fabric.control import Fabric
from kvist.fabric.messages import TierBooks, TierName
from kvist.fabric.outcome import Outcome
from kvist.server.administration_ports import Means, everything
from kvist.tiers.ports import Entry


class FabricStock:
    """The `kvist.server.administration_ports.Stock` of a fabric that an engine uses meanwhile."""

    def __init__(self, fabric: Fabric) -> None:
        """Looks at a fabric, and changes it only when asked to."""
        self._fabric = fabric
        self._administration = Administration(fabric)

    def tiers(self) -> Sequence[TierBooks]:
        """See `Stock.tiers`."""
        return self._fabric.statistics().tiers

    def entries(
        self, tier: TierName, tenant: TenantTag | None, most: int, timeout_s: float, means: Means = everything
    ) -> Sequence[Entry]:
        """See `Stock.entries`."""
        return self._administration.entries(tier, tenant=tenant, most=most, timeout_s=timeout_s, means=means)

    def pin(self, tier: TierName, entries: Sequence[Entry], timeout_s: float, *, pinned: bool) -> Outcome:
        """See `Stock.pin`."""
        return self._administration.pin(tier, entries, pinned=pinned, timeout_s=timeout_s)

    def copy(self, source: TierName, target: TierName, entries: Sequence[Entry], timeout_s: float) -> Outcome:
        """See `Stock.copy`."""
        return self._administration.copy(source, target, entries, timeout_s)

    def move(self, source: TierName, target: TierName, entries: Sequence[Entry], timeout_s: float) -> Outcome:
        """See `Stock.move`."""
        return self._administration.move(source, target, entries, timeout_s)

    def remove(self, tier: TierName, entries: Sequence[Entry], timeout_s: float) -> Outcome:
        """See `Stock.remove`."""
        return self._administration.remove(tier, entries, timeout_s)

    def purge(self, tier: TierName, tenant: TenantTag | None, timeout_s: float) -> Outcome:
        """See `Stock.purge`."""
        return self._administration.purge_tier(tier, tenant, timeout_s)

    def verify(self, tier: TierName, entries: Sequence[Entry], timeout_s: float) -> Outcome:
        """See `Stock.verify`."""
        return self._administration.verify_entries(tier, entries, timeout_s)
