"""How many bytes each tenant has in one placed tier, and how many it may have."""

from collections.abc import Mapping

from kvist.blocks.keys import TenantTag
from kvist.fabric.claims import BookLimits


class Quotas:
    """Counts the bytes of places by tenant; forgets tenants that have none."""

    def __init__(self, limits: BookLimits) -> None:
        """Nobody has anything."""
        self._limits = limits
        self._held: dict[TenantTag, int] = {}

    def of(self, tenant: TenantTag) -> int | None:
        """What a tenant may have; None: only the tier bounds it."""
        return self._limits.tenant_bytes_max.get(tenant, self._limits.tenant_bytes_default)

    def held(self, tenant: TenantTag) -> int:
        """What a tenant has."""
        return self._held.get(tenant, 0)

    def exceeded(self, tenant: TenantTag, more: int) -> bool:
        """Whether so many bytes more would be too many."""
        quota = self.of(tenant)
        return quota is not None and self.held(tenant) + more > quota

    def change(self, tenant: TenantTag, more: int) -> None:
        """A tenant has so many bytes more, or fewer."""
        held = self.held(tenant) + more
        assert held >= 0, f"tenant {tenant.hex()} would have {held} bytes"
        if held:
            self._held[tenant] = held
        else:
            self._held.pop(tenant, None)

    def all_held(self) -> Mapping[TenantTag, int]:
        """A frozen snapshot."""
        return dict(self._held)
